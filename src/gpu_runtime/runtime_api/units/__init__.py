"""The GPU unit API: the handoff creates units from stock, and the unit service reads, updates and deletes them.

Seeding of stock is in `stock`, attaching of storages in `storages`. The controller manager creates the pods.
"""
