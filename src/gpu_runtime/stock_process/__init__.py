"""The process in the container of a stock unit. It reserves the GPUs by running, and exits immediately on SIGTERM."""
