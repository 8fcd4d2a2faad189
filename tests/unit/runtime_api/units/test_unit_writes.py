"""What the service decides before and after it talks to anybody."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.errors import Conflict, Invalid
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units import service
from gpu_runtime.runtime_api.units.requests import CreateUnit
from gpu_runtime.runtime_api.units.service import MAX_WRITE_ATTEMPTS, UnitService

UNIT = msgspec.convert(
    {"metadata": {"name": "web", "namespace": "runtime-instance"}, "spec": {"specName": "g1.1"}}, GPUUnit
)


class ConflictingClient:
    """A client whose every write comes second, and a cache that learns nothing from it."""

    def __init__(self) -> None:
        self.reads = self.writes = 0
        self.units = self

    def record_write(self, _unit: GPUUnit) -> None: ...

    async def get(self, *_: Any) -> GPUUnit:
        self.reads += 1
        return UNIT

    async def attach(self, *_: Any) -> None:
        """There is nothing to attach."""

    check = attach

    async def merge_patch(self, *_: Any, **__: Any) -> GPUUnit:
        self.writes += 1
        raise kube.KubeConflict(kube.ApiStatus(code=409, message="the object has been modified"))


async def test_write_fails_after_max_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_APART", Backoff(initial_seconds=0))
    contended: Any = ConflictingClient()
    units = UnitService(contended, contended, APINamespaceSettings(), contended, contended, contended)
    with pytest.raises(Conflict, match="somebody else wrote at the same time; try again"):
        await units.stop("", "web")
    assert (contended.reads, contended.writes) == (MAX_WRITE_ATTEMPTS, MAX_WRITE_ATTEMPTS)


class RecordingHandoff:
    """A handoff that makes what it is asked for, and a cache that takes note."""

    def __init__(self) -> None:
        self.asked: list[CreateUnit] = []
        self.learned: list[GPUUnit] = []
        self.units = self

    async def create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        self.asked.append(request)
        return UNIT, True

    def record_write(self, unit: GPUUnit) -> None:
        self.learned.append(unit)


async def test_create_is_validated_and_normalized_before_the_handoff() -> None:
    making: Any = RecordingHandoff()
    units = UnitService(making, making, APINamespaceSettings(), making, making, making)
    sloppy = CreateUnit(operation_id="unit-1", name="web", spec_name="g1.1", image=" python ")
    with pytest.raises(Invalid, match="name: is required"):
        await units.create(structs.replace(sloppy, name=""))
    assert making.asked == []
    assert await units.create(sloppy) == (UNIT, True)
    spelled = structs.replace(sloppy, image="python", namespace="runtime-instance", stock_namespace="runtime-stock")
    assert making.asked == [spelled]
    assert making.learned == [UNIT]
