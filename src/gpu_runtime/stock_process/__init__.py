"""The process of a stock unit: it holds GPUs by being there, and lets go at once when told to."""
