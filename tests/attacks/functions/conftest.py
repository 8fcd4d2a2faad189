"""Fixtures of the attacks on functions: a controller manager, and an activator with a real runtime API."""

from tests.integration.activator.conftest import harness, runtime_api
from tests.integration.controller_manager.conftest import cluster, namespace

__all__ = ["cluster", "harness", "namespace", "runtime_api"]
