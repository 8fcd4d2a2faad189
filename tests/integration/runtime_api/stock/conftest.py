"""Fixtures for tests of stock and pools."""

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

import pytest

from localcluster.control_plane import ControlPlane
from tests.integration.runtime_api.service_replicas import ServiceReplica, service_replica


class StartReplica(Protocol):
    def __call__(self, *, watching: bool = True) -> AbstractAsyncContextManager[ServiceReplica]: ...


@pytest.fixture
def start_replica(control_plane: ControlPlane, platform_crds: tuple[str, ...], namespace: str) -> StartReplica:
    """Start a replica whose operations, stock and pools are all in the namespace of the test."""
    return partial(service_replica, control_plane.kubeconfig, namespace)
