"""The Kubernetes library of all processes: client, informer, workqueue, controller, leader election, Events.

It contains no product nouns. It is asynchronous only, and one event loop owns all of its objects. It deliberately has
no threads, no cache in the client, no webhooks, no discovery of kinds, no exec or port-forward into pods, no proxy
settings from the environment, and no client-side rate limit: the API server has a fairer rate limit and reports it with
429.
"""
