"""Manifests and sample files, generated from the code that they describe. A tool: no process imports it."""
