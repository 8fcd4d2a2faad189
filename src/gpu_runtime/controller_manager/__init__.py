"""The controller-manager process: it reconciles GPUUnits, GPUStorages and StockPools.

It contains one package per reconciled kind, the code that units and pools share (`workload`), the informers, and the
collector of orphaned ReplicaSets. It does not serve the HTTP API, and it does not publish or consume invocations.
"""
