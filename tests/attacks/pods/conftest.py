"""A cluster with a controller manager and simulated nodes, as the tests of the controller manager have it."""

from tests.integration.controller_manager.conftest import cluster, garbage_collector_ready, namespace

__all__ = ["cluster", "garbage_collector_ready", "namespace"]
