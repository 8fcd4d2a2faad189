"""When the caches of the runtime API are complete enough to answer requests."""

from types import SimpleNamespace
from typing import cast

import pytest

from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import APIInformers, new_informers
from gpu_runtime.runtime_api.settings import APINamespaceSettings


@pytest.fixture
def informers() -> APIInformers:
    """Informers whose required caches are complete. The caches of prepared pods are not."""
    namespaces = APINamespaceSettings(units=("runtime-instance", "team"))
    client = SimpleNamespace(with_options=lambda **_: None)
    informers = new_informers(cast(KubeClient, client), namespaces, KubeMetrics())
    for each in informers.required:
        each._synced.set()
    return informers


def test_api_waits_for_all_caches(informers: APIInformers) -> None:
    assert not informers.has_synced
    for each in informers.prepared_pods.values():
        each._synced.set()
    assert informers.has_synced
    informers.pools._synced.clear()
    assert not informers.has_synced


def test_missing_permission_in_one_namespace_of_units_does_not_stop_the_api(informers: APIInformers) -> None:
    informers.prepared_pods["runtime-instance"]._synced.set()
    informers.prepared_pods["team"].last_error = "pods cannot be watched: 403 Forbidden"
    assert informers.has_synced
    assert set(informers.all) == {*informers.required, *informers.prepared_pods.values()}
