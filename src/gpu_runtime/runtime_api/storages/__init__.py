"""The GPU storage API: creates, resizes and deletes storages, and attaches them to units.

The controller manager creates the PersistentVolumeClaims and detaches storages of deleted units.
"""
