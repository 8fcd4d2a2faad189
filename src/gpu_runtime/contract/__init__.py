"""Definitions that all processes share: custom resources, NATS messages, recorded requests, rules and errors.

This package contains only data and pure functions. No code here does I/O, reads a clock or uses a client.
"""
