"""The Kubernetes library of the platform: client, informer, workqueue, controller, leader election, Events.

The library does not use the nouns of the product. It is asynchronous only, and one event loop owns all of its objects.
It deliberately has no threads, no cache in the client, no webhooks, no discovery of kinds, no exec or port-forward into
pods, and no proxy settings from the environment. It also has no client-side rate limit, because the rate limit of the
API server is fairer. The API server reports its rate limit with 429.
"""
