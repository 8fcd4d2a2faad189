"""The runtime API: HTTP, validation, operations and the handoff, on any number of replicas. It reconciles nothing.

A request enters at `http`, is answered by the routes of `units`, `stock` or `operations`, reads from `caches` and
writes to Kubernetes. What a killed replica left half-done, `operations.sweep` of any other replica finishes.
"""
