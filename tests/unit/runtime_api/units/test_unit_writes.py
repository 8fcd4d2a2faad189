"""The unit service retries conflicting writes, and does not change a unit that is being deleted."""

from typing import Any, cast

import msgspec
import pytest
from msgspec import structs

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.errors import BeingDeleted, WriteConflict
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.informer import Informer
from gpu_runtime.runtime_api import object_access
from gpu_runtime.runtime_api.object_access import MAX_WRITE_ATTEMPTS
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.service import UnitService

UNIT = msgspec.convert(
    {"metadata": {"name": "web", "namespace": "runtime-instance"}, "spec": {"specName": "g1.1"}}, GPUUnit
)


class ConflictingClient:
    """A client whose writes always conflict. It also serves as informer and attacher."""

    def __init__(self, unit: GPUUnit = UNIT) -> None:
        self.unit = unit
        self.reads = self.writes = 0
        self.units: Informer[GPUUnit] = Informer(cast(KubeClient, self), GPU_UNITS)

    def with_options(self, **_: Any) -> "ConflictingClient":
        return self

    async def get(self, *_: Any) -> GPUUnit:
        self.reads += 1
        return self.unit

    async def attach(self, *_: Any) -> None:
        """The unit has no storages."""

    async def merge_patch(self, *_: Any, **__: Any) -> GPUUnit:
        self.writes += 1
        raise kube.KubeConflict(kube.ApiStatus(code=409, message="the object has been modified"))


async def test_write_fails_after_max_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_access, "CONFLICT_BACKOFF", Backoff(initial_seconds=0))
    client: Any = ConflictingClient()
    units = UnitService(client, client, APINamespaceSettings(), client, client, client)
    with pytest.raises(WriteConflict, match="other requests changed unit web at the same time; send the request again"):
        await units.stop("", "web")
    assert (client.reads, client.writes) == (MAX_WRITE_ATTEMPTS, MAX_WRITE_ATTEMPTS)


async def test_write_of_a_unit_that_is_being_deleted_is_rejected() -> None:
    deleting = structs.replace(UNIT.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    client: Any = ConflictingClient(structs.replace(UNIT, metadata=deleting))
    units = UnitService(client, client, APINamespaceSettings(), client, client, client)
    with pytest.raises(BeingDeleted, match="unit runtime-instance/web is being deleted"):
        await units.stop("", "web")
    assert client.writes == 0
