"""JetStream machinery without product nouns: connect, publish, consume, ask, keep values. Nothing of Kubernetes."""
