"""Keeps GPUUnits true: observe, decide, apply, report."""
