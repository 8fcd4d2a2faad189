"""The runtime API: the HTTP server, request validation, operations and the handoff. It contains no reconciler.

Any number of replicas serve at the same time, without a leader. `http` receives a request, and a handler of `units`,
`stock`, `storages`, `jobs`, `invocations` or `dead_letters` answers it. Handlers read from the informers
(`api_informers`) and write to Kubernetes or NATS. If a replica is killed during an operation, `operations.recovery` of
another replica finishes the operation or rolls it back.
"""
