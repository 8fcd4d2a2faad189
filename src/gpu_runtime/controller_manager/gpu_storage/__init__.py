"""Keeps GPUStorages true: observe, decide, apply, report. Only an explicit deletion of a storage deletes its data."""
