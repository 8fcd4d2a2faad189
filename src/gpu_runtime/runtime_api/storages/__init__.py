"""Storages: data that outlives its units, and who may mount it."""
