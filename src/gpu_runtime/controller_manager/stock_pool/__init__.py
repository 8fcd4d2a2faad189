"""The StockPool controller: observes a pool, applies its Deployment and Service, and writes its status.

It does not create GPUUnits: the pods of a pool are not stock units.
"""
