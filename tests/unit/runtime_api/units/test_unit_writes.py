"""A write that loses every race ends, and says so."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.errors import Conflict
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.units import service
from gpu_runtime.runtime_api.units.service import ATTEMPTS, Units

UNIT = msgspec.convert(
    {"metadata": {"name": "web", "namespace": "runtime-instance"}, "spec": {"specName": "g1.1"}}, GPUUnit
)


class Contended:
    """A client whose every write comes second, and a cache that learns nothing from it."""

    def __init__(self) -> None:
        self.reads = self.writes = 0
        self.units = self

    def learn(self, _unit: GPUUnit) -> None: ...

    async def get(self, *_: Any) -> GPUUnit:
        self.reads += 1
        return UNIT

    async def merge_patch(self, *_: Any, **__: Any) -> GPUUnit:
        self.writes += 1
        raise kube.Conflict(kube.Status(code=409, message="the object has been modified"))


async def test_a_write_that_loses_every_race_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_APART", Backoff(first=0))
    contended: Any = Contended()
    units = Units(contended, contended, Namespaces(), contended, contended)
    with pytest.raises(Conflict, match="somebody else wrote at the same time; try again"):
        await units.stop("", "web")
    assert (contended.reads, contended.writes) == (ATTEMPTS, ATTEMPTS)
