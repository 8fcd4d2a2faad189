"""A NATS and JetStream client: connection, publisher, pull consumer, request/reply, key-value buckets, stream setup.

`pull_consumer` runs one handler per delivery. While the handler runs, it extends the ack wait. Afterwards it acks, naks
or dead-letters the message. After the maximum number of deliveries it always dead-letters a failed message
(`delivery`). `puller` ensures that the JetStream consumer exists, and sends the pull requests. `stream_admin` creates
and updates streams, consumers and buckets.

Nothing here uses Kubernetes or the product's own terms: `contract.messages` defines the streams, subjects and messages.
"""
