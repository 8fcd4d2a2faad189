"""The invocation API: validates and enqueues invocations, and returns their state and results.

The activator dispatches invocations, workers run them, and the result store stores their results.
"""
