"""The shared parts of the processes: settings, logs, graceful shutdown, health checks, metrics, NATS options, stock.

The package also has parts that any process can use: a clock, a background queue and a rate limit. Code that knows the
work of only one process is not in this package.
"""
