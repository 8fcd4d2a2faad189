"""The result store: results from the queue into the database, the end of each invocation's record, and look-ups.

It knows nothing of Kubernetes.
"""
