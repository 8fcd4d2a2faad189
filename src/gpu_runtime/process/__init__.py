"""The shared parts of every process: settings, logs, graceful shutdown, health checks, metrics, NATS options.

Code that only one process needs is not in this package.
"""
