"""The operator API of dead letters: list, get, redrive and delete.

The consumers of the streams write dead letters. This package only reads, resends and deletes them.
"""
