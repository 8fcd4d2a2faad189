"""Reads and writes invocation records, and publishes the results of invocations. Four processes share this package.

`contract.messages.invocation_record` decides every change. This package contains the only loop that writes a record.
"""
