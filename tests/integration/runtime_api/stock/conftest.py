"""Two replicas' worth of what tests of stock and pools need."""

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
    """Starts a replica for a namespace of the test's own, where operations, stock and pools all lie."""
    return partial(service_replica, control_plane.kubeconfig, namespace)
