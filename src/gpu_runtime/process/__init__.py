"""The shared parts of every process: settings, logs, graceful shutdown, health checks, metrics, NATS options.

It contains nothing that only one of the processes does.
"""
