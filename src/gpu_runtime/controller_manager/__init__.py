"""The controller-manager process. It reconciles GPUUnits, GPUStorages and StockPools.

This package contains one subpackage per reconciled kind, the code that units and pools share (`workload`), the
informers, and the collector of orphaned ReplicaSets. The process does not serve the HTTP API, and it does not publish
or consume invocations.
"""
