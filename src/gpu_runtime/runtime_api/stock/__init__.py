"""The operator API of stock: stock pools, seeding and listing of stock units, and the inventory.

The handoff in `units` claims stock. The controller manager creates the pods of stock units and pools.
"""
