"""The worker sidecar: pulls invocations from NATS, calls the framework, publishes results and heartbeats.

`dispatch_handler` runs one delivered invocation: it calls the framework, and publishes the result, again and again
while NATS cannot store it. `retry_decision` decides whether to retry, `dispatch_handler` after which delay.
`framework_client` makes the call and decides whether connections are kept; `http_response_parser` reads the response
and truncates a body that is too large; `framework_response` maps it to an outcome.
`gpu_runtime.jetstream.pull_consumer` delivers the messages and extends their ack wait.

One sidecar runs in each worker pod, beside the container of the user. The sidecar holds the NATS credentials, so it
validates everything that the framework sends. This package has no Kubernetes client.
"""
