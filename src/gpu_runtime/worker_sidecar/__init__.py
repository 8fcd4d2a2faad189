"""The worker sidecar: pulls invocations from NATS, calls the framework, publishes results and heartbeats.

- `gpu_runtime.jetstream.pull_consumer` delivers the messages and extends their ack wait.
- `dispatch_handler` runs one delivered invocation: it calls the framework and publishes the result. If NATS cannot
  store the result, it publishes the result again until NATS has stored it. It also computes the delay of a retry.
- `retry_decision` decides whether to retry an invocation.
- `framework_client` calls the framework and decides whether to reuse connections.
- `framework_response` reads the response, truncates a body that is too large, and maps the response to an outcome.

One sidecar runs in each worker pod, next to the user's container. Only the sidecar has the NATS credentials, so it
validates everything that the framework sends. This package has no Kubernetes client.
"""
