"""The shared parts of the processes: settings, logs, graceful shutdown, health checks, metrics, NATS options, stock.

Code that only one process needs is not in this package.
"""
