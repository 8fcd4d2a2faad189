"""Generates manifests, sample objects, settings files and the OpenAPI document from the code that they describe.

This is a development tool. No process imports it.
"""
