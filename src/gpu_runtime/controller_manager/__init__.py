"""The process that keeps GPUUnits, GPUStorages and StockPools true. It serves no API and publishes no invocations."""
