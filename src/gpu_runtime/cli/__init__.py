"""The console script `gpu-runtime`: one command per process."""
