"""The result store process.

It stores results from the RESULT stream in a database, sets the invocation records to a terminal state, answers result
queries over NATS, and evicts old results. It does not use Kubernetes.
"""
