"""The result store process.

It stores results from the RESULT stream in a database, updates the invocation records to terminal, answers result
queries over NATS, and evicts old results. It does not use Kubernetes.
"""
