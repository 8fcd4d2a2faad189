"""The console script `gpu-runtime`, with one command per process."""
