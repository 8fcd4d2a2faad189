"""What the processes share: custom resources, NATS messages, validation rules and errors.

Pure data and functions: nothing here does I/O, reads a clock or holds a client.
"""
