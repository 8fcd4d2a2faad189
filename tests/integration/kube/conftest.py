"""A client of the real API server."""

from collections.abc import AsyncIterator

import pytest

from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from localcluster.control_plane import ControlPlane


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    async with open_kube_client(load_cluster_config(control_plane.kubeconfig), field_manager="test") as connected:
        yield connected
