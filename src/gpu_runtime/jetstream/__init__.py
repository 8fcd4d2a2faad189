"""A NATS and JetStream client: connection, publisher, pull consumer, request/reply, key-value buckets, stream setup.

`pull_consumer` runs one handler per delivery: it extends the ack wait while the handler works, and acks, naks or
dead-letters the message, the last one after the maximum number of deliveries (`delivery`). `puller` ensures that its
consumer exists, and pulls. `stream_admin` creates and updates streams, consumers and buckets.

Nothing here uses Kubernetes or the product's own terms: `contract.messages` defines the streams, subjects and messages.
"""
