"""The result repository: a small interface and its SQLite implementation.

It stores results, finds them, and decides which old results to delete (`eviction`). It does not use NATS and does not
decode messages. A result is a row of bytes.
"""
