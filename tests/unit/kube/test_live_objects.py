"""A deletion at the API server also removes the object from the informer cache."""

from typing import Any, cast

import pytest

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import ApiStatus, KubeConflict, KubeNotFound, KubeUnreachable
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.live_objects import delete_this
from gpu_runtime.kube.meta import ObjectKey
from tests.unit.runtime_api.runtime_api_objects import unit


class FakeDeletions:
    """A client whose deletions fail, or succeed if the failure is None."""

    def __init__(self, failure: Exception | None) -> None:
        self._failure = failure
        self.deleted_uids: list[str] = []

    def with_options(self, **_: Any) -> "FakeDeletions":
        return self

    async def delete(self, _resource: Any, _key: ObjectKey, *, uid: str) -> None:
        self.deleted_uids.append(uid)
        if self._failure is not None:
            raise self._failure


@pytest.mark.parametrize(
    "failure",
    [None, KubeNotFound(ApiStatus(code=404, message="none")), KubeConflict(ApiStatus(code=409, message="other UID"))],
    ids=["deleted", "already deleted", "another object has the name"],
)
async def test_deleted_object_disappears_from_the_cache(failure: Exception | None) -> None:
    client = FakeDeletions(failure)
    informer = Informer(cast(KubeClient, client), GPU_UNITS)
    informer.store.put(unit("stock-1"))
    await delete_this(cast(KubeClient, client), informer, ObjectKey("runtime-stock", "stock-1"), "")
    assert (client.deleted_uids, informer.store.all()) == ([""], [])


async def test_object_stays_cached_if_its_deletion_fails() -> None:
    client = FakeDeletions(KubeUnreachable("no answer", sent=True))
    informer = Informer(cast(KubeClient, client), GPU_UNITS)
    informer.store.put(unit("stock-1"))
    with pytest.raises(KubeUnreachable):
        await delete_this(cast(KubeClient, client), informer, ObjectKey("runtime-stock", "stock-1"), "")
    assert len(informer.store.all()) == 1
