"""Fixtures of the attacks on stock and operations: an activator with a real runtime API."""

from tests.integration.activator.conftest import harness, runtime_api

__all__ = ["harness", "runtime_api"]
