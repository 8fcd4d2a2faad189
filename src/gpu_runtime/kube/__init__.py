"""Kubernetes machinery: client, informer, work queue, controller, election, Events. No product nouns.

Asynchronous only, on asyncio; one event loop owns all of it. Absent on purpose: threads, a cache in the client,
webhooks, discovery of kinds, exec and port-forward into pods, proxies from the environment, and rate limits of its own,
since the API server has fairer ones and says so with 429.
"""
