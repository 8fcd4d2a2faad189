"""Keeps StockPools true: observe, decide, apply, report."""
