"""The worker sidecar: one worker's pulls from the queue, calls to the user's framework, results and heartbeats.

It holds the queue's credentials, so nothing of what the framework says is trusted.
"""
