"""The GPU unit API: the handoff creates units from stock, and the unit service reads, updates and deletes them.

The package `stock` seeds stock, and the package `storages` attaches storages. The controller manager creates the pods.
"""
