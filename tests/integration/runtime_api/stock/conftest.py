"""Two replicas' worth of what tests of stock and pools need."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import pytest

from localcluster.control_plane import ControlPlane
from tests.integration.runtime_api.replicas import Replica, replica

StartReplica: TypeAlias = Callable[[], AbstractAsyncContextManager[Replica]]


@pytest.fixture
def start_replica(control_plane: ControlPlane, platform_crds: tuple[str, ...], namespace: str) -> StartReplica:
    """Starts a replica for a namespace of the test's own, where operations, stock and pools all lie."""
    return lambda: replica(control_plane.kubeconfig, namespace)
