"""The client under test, against the real API server."""

from collections.abc import AsyncIterator

import pytest

from gpu_runtime.kube.client import Client, connect
from gpu_runtime.kube.config import load_config
from localcluster.control_plane import ControlPlane


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    async with connect(load_config(control_plane.kubeconfig), field_manager="test") as connected:
        yield connected
