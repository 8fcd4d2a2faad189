"""Who may have a storage, as tables: what is written is an attachment, and whom that lets in or out."""

from typing import Any, cast

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import StorageMount
from gpu_runtime.contract.errors import Conflict, StorageInUse
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.meta import Key
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import open_caches
from gpu_runtime.runtime_api.operations.operation_store import Outdated
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.storages.storage_attacher import Attachments

HERE = "runtime-instance"
Held = dict[str, Any] | None


class OneStorage:
    """An API server that knows one storage, or none, and counts what is asked of it."""

    def __init__(self, held: Held, *, deleting: bool = False, there: bool = True) -> None:
        about = {"name": "data", "namespace": HERE, "uid": "u", "resourceVersion": "1"}
        ending = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
        self.found: dict[str, Any] | None = None
        if there:
            self.found = {"metadata": about | ending, "spec": {"size": "1Gi", "attachedTo": held}}
        self.reads = 0
        self.writes: list[Held] = []
        self.conflicts = 0
        """How many writes come second, each to a write that changed nothing of the attachment."""

    @property
    def storage(self) -> GPUStorage:
        if self.found is None:
            raise kube.NotFound(kube.Status(code=404, message="none"))
        return msgspec.convert(self.found, GPUStorage)

    def patient(self, **_: Any) -> "OneStorage":
        return self

    async def get(self, _kind: Any, _key: Key) -> GPUStorage:
        self.reads += 1
        return self.storage

    async def merge_patch(self, _kind: Any, _key: Key, patch: Any, *, resource_version: str) -> GPUStorage:
        found = self.storage
        if self.conflicts:
            self.conflicts -= 1
            self._next_version()
        if found.metadata.resource_version != resource_version or self.storage != found:
            raise kube.Conflict(kube.Status(code=409, message="modified"))
        assert self.found
        wanted = patch["spec"]["attachedTo"]
        self.found["spec"]["attachedTo"] = wanted and {name: text for name, text in wanted.items() if text is not None}
        self._next_version()
        self.writes.append(wanted)
        return self.storage

    def _next_version(self) -> None:
        assert self.found
        about = self.found["metadata"]
        self.found["metadata"] = about | {"resourceVersion": str(int(about["resourceVersion"]) + 1)}


def attachments(server: OneStorage, cached: GPUStorage | None = None) -> Attachments:
    client = cast(Client, server)
    caches = open_caches(client, Namespaces(), KubeMetrics())
    if cached is not None:
        caches.storages.store.put(cached)
    return Attachments(client, caches)


def held(unit: str = "web", operation: str = "", attempt: int = 0) -> dict[str, Any]:
    return {"unit": unit, "operationID": operation, "attempt": attempt}


def holder(unit: str = "web", operation: str = "make", attempt: int = 1) -> Attachment:
    return Attachment(unit=unit, operation_id=operation, attempt=attempt)


CREATED = holder()
UPDATED = Attachment(unit="web")
NOTHING: list[Held] = []
TAKEN = {"unit": "web", "operationID": "make", "attempt": 1}

ATTACHED: dict[str, tuple[Held, Attachment, list[Held]]] = {
    "free, for a create": (None, CREATED, [TAKEN]),
    "free, for an update": (None, UPDATED, [{"unit": "web", "operationID": None, "attempt": 0}]),
    "held by this operation": (held("web", "make", 1), CREATED, NOTHING),
    "held by an earlier attempt": (held("web", "make", 0), CREATED, [TAKEN]),
    "an update, of the unit's own": (
        held("web", "make", 3),
        UPDATED,
        [{"unit": "web", "operationID": None, "attempt": 0}],
    ),
    "an update of a unit that was made by hand": (held("web"), UPDATED, NOTHING),
}


@pytest.mark.parametrize(("now", "wanted", "writes"), ATTACHED.values(), ids=ATTACHED)
async def test_who_gets_it(now: Held, wanted: Attachment, writes: list[Held]) -> None:
    server = OneStorage(now)
    await attachments(server).check(HERE, ["data"], wanted)
    assert server.writes == []
    await attachments(server).attach(HERE, ["data"], wanted)
    assert server.writes == writes


REFUSED: dict[str, tuple[OneStorage, Attachment, str]] = {
    "another unit": (OneStorage(held("other")), CREATED, "data is attached to unit other; one unit mounts it"),
    "another unit, for an update": (OneStorage(held("other", "make-other", 1)), UPDATED, "attached to unit other"),
    "an earlier unit of its name": (OneStorage(held("web", "before", 1)), CREATED, "unit web and not released yet"),
    "a unit of its name, by hand": (OneStorage(held("web")), CREATED, "unit web and not released yet"),
    "being deleted": (OneStorage(None, deleting=True), CREATED, "storage data is being deleted"),
    "its own, being deleted": (OneStorage(held("web", "make", 1), deleting=True), CREATED, "is being deleted"),
}


@pytest.mark.parametrize(("server", "wanted", "said"), REFUSED.values(), ids=REFUSED)
async def test_who_does_not(server: OneStorage, wanted: Attachment, said: str) -> None:
    for refused in (attachments(server).check, attachments(server).attach):
        with pytest.raises(StorageInUse, match=said):
            await refused(HERE, ["data"], wanted)
    assert server.writes == []


async def test_what_is_gone_is_a_conflict_and_no_storage_in_use() -> None:
    for refused in (
        attachments(OneStorage(None, there=False)).check,
        attachments(OneStorage(None, there=False)).attach,
    ):
        with pytest.raises(Conflict, match="storage data is gone") as gone:
            await refused(HERE, ["data"], CREATED)
        assert gone.type is Conflict


async def test_a_later_attempt_of_the_same_operation_is_not_taken_over() -> None:
    server = OneStorage(held("web", "make", 2))
    with pytest.raises(Outdated):
        await attachments(server).attach(HERE, ["data"], CREATED)
    assert server.writes == []


async def test_whoever_comes_second_looks_again() -> None:
    server = OneStorage(None)
    server.conflicts = 2
    await attachments(server).attach(HERE, ["data"], CREATED)
    assert server.writes == [TAKEN]


async def test_a_cache_that_says_free_costs_no_read_and_one_that_says_taken_is_not_believed() -> None:
    server = OneStorage(None)
    await attachments(server, cached=server.storage).attach(HERE, ["data"], CREATED)
    assert (server.reads, server.writes) == (0, [TAKEN])
    free = OneStorage(None)
    await attachments(free, cached=OneStorage(held("other")).storage).attach(HERE, ["data"], CREATED)
    assert (free.reads, free.writes) == (1, [TAKEN])


async def test_a_cache_that_lags_behind_takes_nothing_from_another_unit() -> None:
    server = OneStorage(held("other"))
    stale = OneStorage(None).storage
    assert server.found
    server.found["metadata"] |= {"resourceVersion": "2"}
    with pytest.raises(StorageInUse, match="attached to unit other"):
        await attachments(server, cached=stale).attach(HERE, ["data"], CREATED)
    assert server.writes == []


RELEASED: dict[str, tuple[Held, bool]] = {
    "nobody's": (None, False),
    "this attempt's": (held("web", "make", 2), True),
    "an earlier attempt's": (held("web", "make", 1), True),
    "a later attempt's": (held("web", "make", 3), False),
    "another operation's": (held("web", "other", 1), False),
    "a unit's that was made by hand": (held("web"), False),
}


@pytest.mark.parametrize(("now", "is_released"), RELEASED.values(), ids=RELEASED)
async def test_an_operation_takes_back_what_it_attached_and_nothing_else(now: Held, is_released: bool) -> None:
    server = OneStorage(now)
    server.conflicts = 1
    await attachments(server).release(HERE, ["data"], "make", 2)
    assert server.writes == ([None] if is_released else [])


async def test_what_changed_since_it_was_looked_at_is_not_released() -> None:
    server = OneStorage(held("web", "make", 1))
    seen = server.storage
    assert server.found
    server.found["metadata"] |= {"resourceVersion": "2"}
    await attachments(server).release_once(seen)
    assert server.writes == []


async def test_mounts_of_storages_that_are_not_there_are_named_by_their_place() -> None:
    mounts = [StorageMount(name=name, mount_path=f"/{name}") for name in ("data", "none")]
    there = OneStorage(None)
    known = attachments(OneStorage(None, there=False), cached=there.storage)
    problems = await known.missing(HERE, mounts)
    assert list(map(str, problems)) == [f"storageMounts[1].name: there is no storage none in {HERE}"]
    assert await attachments(there).missing(HERE, mounts[:1]) == ()


def test_only_what_an_operation_attached_is_looked_at_by_the_sweep() -> None:
    caches = open_caches(cast(Client, OneStorage(None)), Namespaces(), KubeMetrics())
    assert caches.storages.resource is GPU_STORAGES
    for number, attached in enumerate((None, held("web"), held("web", "make", 1))):
        storage = OneStorage(attached).storage
        about = msgspec.structs.replace(storage.metadata, name=f"data-{number}")
        caches.storages.store.put(msgspec.structs.replace(storage, metadata=about))
    assert [each.metadata.name for each in caches.storages.store.by("attached", "attached")] == ["data-2"]
