"""Kubernetes machinery: client, informer, work queue, controller, election. No product nouns."""
