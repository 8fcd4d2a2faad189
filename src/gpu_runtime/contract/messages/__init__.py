"""The NATS messages of the serverless plane: models, size limits, subjects, and the streams that store them.

Pure data and functions. `gpu_runtime.jetstream` sends and receives the messages.
"""
