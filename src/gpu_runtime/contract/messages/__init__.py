"""The NATS messages of the serverless plane: models, size limits, subjects, and the streams that store them.

`streams` defines every stream and consumer: subjects, limits, filter, ack wait, inactive threshold. `subjects` builds
and parses subjects. `invocation_record` defines the record of an invocation in the key-value bucket.

The formats are durable: a stream, the bucket or the result database keeps them during an upgrade. An absent field has
its default, so the defaults are durable, too. docs/compatibility.md says what a change of a format needs.

This package contains only data and pure functions. `gpu_runtime.jetstream` sends and receives the messages.
"""
