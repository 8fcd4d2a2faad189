"""Who may have a storage, as tables: what is written is an attachment, and whom that lets in or out."""

from typing import Any, cast

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import StorageMount
from gpu_runtime.contract.errors import Conflict, StorageInUse
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import new_informers
from gpu_runtime.runtime_api.operations.operation_store import StaleAttempt
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.storages.storage_attacher import StorageAttacher

HERE = "runtime-instance"
Held = dict[str, Any] | None


class FakeStorageServer:
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
            raise kube.KubeNotFound(kube.ApiStatus(code=404, message="none"))
        return msgspec.convert(self.found, GPUStorage)

    def with_options(self, **_: Any) -> "FakeStorageServer":
        return self

    async def get(self, _kind: Any, _key: ObjectKey) -> GPUStorage:
        self.reads += 1
        return self.storage

    async def merge_patch(self, _kind: Any, _key: ObjectKey, patch: Any, *, resource_version: str) -> GPUStorage:
        found = self.storage
        if self.conflicts:
            self.conflicts -= 1
            self._next_version()
        if found.metadata.resource_version != resource_version or self.storage != found:
            raise kube.KubeConflict(kube.ApiStatus(code=409, message="modified"))
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


def attachments(server: FakeStorageServer, cached: GPUStorage | None = None) -> StorageAttacher:
    client = cast(KubeClient, server)
    caches = new_informers(client, APINamespaceSettings(), KubeMetrics())
    if cached is not None:
        caches.storages.store.put(cached)
    return StorageAttacher(client, caches)


def attachment_fields(unit: str = "web", operation: str = "", attempt: int = 0) -> dict[str, Any]:
    return {"unit": unit, "operationID": operation, "attempt": attempt}


def attachment(unit: str = "web", operation: str = "make", attempt: int = 1) -> Attachment:
    return Attachment(unit=unit, operation_id=operation, attempt=attempt)


CREATED = attachment()
UPDATED = Attachment(unit="web")
NOTHING: list[Held] = []
OWN_ATTACHMENT = {"unit": "web", "operationID": "make", "attempt": 1}

ATTACHED: dict[str, tuple[Held, Attachment, list[Held]]] = {
    "free, for a create": (None, CREATED, [OWN_ATTACHMENT]),
    "free, for an update": (None, UPDATED, [{"unit": "web", "operationID": None, "attempt": 0}]),
    "held by this operation": (attachment_fields("web", "make", 1), CREATED, NOTHING),
    "held by an earlier attempt": (attachment_fields("web", "make", 0), CREATED, [OWN_ATTACHMENT]),
    "an update, of the unit's own": (
        attachment_fields("web", "make", 3),
        UPDATED,
        [{"unit": "web", "operationID": None, "attempt": 0}],
    ),
    "an update of a unit that was made by hand": (attachment_fields("web"), UPDATED, NOTHING),
}


@pytest.mark.parametrize(("now", "wanted", "writes"), ATTACHED.values(), ids=ATTACHED)
async def test_attach_of_a_free_or_own_storage_succeeds(now: Held, wanted: Attachment, writes: list[Held]) -> None:
    server = FakeStorageServer(now)
    await attachments(server).check_available(HERE, ["data"], wanted)
    assert server.writes == []
    await attachments(server).attach(HERE, ["data"], wanted)
    assert server.writes == writes


REFUSED: dict[str, tuple[FakeStorageServer, Attachment, str]] = {
    "another unit": (
        FakeStorageServer(attachment_fields("other")),
        CREATED,
        "data is attached to unit other; one unit mounts it",
    ),
    "another unit, for an update": (
        FakeStorageServer(attachment_fields("other", "make-other", 1)),
        UPDATED,
        "attached to unit other",
    ),
    "an earlier unit of its name": (
        FakeStorageServer(attachment_fields("web", "before", 1)),
        CREATED,
        "unit web and not released yet",
    ),
    "a unit of its name, by hand": (
        FakeStorageServer(attachment_fields("web")),
        CREATED,
        "unit web and not released yet",
    ),
    "being deleted": (FakeStorageServer(None, deleting=True), CREATED, "storage data is being deleted"),
    "its own, being deleted": (
        FakeStorageServer(attachment_fields("web", "make", 1), deleting=True),
        CREATED,
        "is being deleted",
    ),
}


@pytest.mark.parametrize(("server", "wanted", "said"), REFUSED.values(), ids=REFUSED)
async def test_attach_of_a_storage_in_use_is_rejected(server: FakeStorageServer, wanted: Attachment, said: str) -> None:
    for refused in (attachments(server).check_available, attachments(server).attach):
        with pytest.raises(StorageInUse, match=said):
            await refused(HERE, ["data"], wanted)
    assert server.writes == []


async def test_attach_of_a_deleted_storage_is_a_conflict() -> None:
    for refused in (
        attachments(FakeStorageServer(None, there=False)).check_available,
        attachments(FakeStorageServer(None, there=False)).attach,
    ):
        with pytest.raises(Conflict, match="storage data is gone") as gone:
            await refused(HERE, ["data"], CREATED)
        assert gone.type is Conflict


async def test_attach_by_an_outdated_attempt_is_rejected() -> None:
    server = FakeStorageServer(attachment_fields("web", "make", 2))
    with pytest.raises(StaleAttempt):
        await attachments(server).attach(HERE, ["data"], CREATED)
    assert server.writes == []


async def test_attach_is_retried_after_a_write_conflict() -> None:
    server = FakeStorageServer(None)
    server.conflicts = 2
    await attachments(server).attach(HERE, ["data"], CREATED)
    assert server.writes == [OWN_ATTACHMENT]


async def test_attach_reads_live_only_when_the_cache_shows_another_holder() -> None:
    server = FakeStorageServer(None)
    await attachments(server, cached=server.storage).attach(HERE, ["data"], CREATED)
    assert (server.reads, server.writes) == (0, [OWN_ATTACHMENT])
    free = FakeStorageServer(None)
    await attachments(free, cached=FakeStorageServer(attachment_fields("other")).storage).attach(
        HERE, ["data"], CREATED
    )
    assert (free.reads, free.writes) == (1, [OWN_ATTACHMENT])


async def test_attach_with_a_stale_cache_never_takes_the_storage_of_another_unit() -> None:
    server = FakeStorageServer(attachment_fields("other"))
    stale = FakeStorageServer(None).storage
    assert server.found
    server.found["metadata"] |= {"resourceVersion": "2"}
    with pytest.raises(StorageInUse, match="attached to unit other"):
        await attachments(server, cached=stale).attach(HERE, ["data"], CREATED)
    assert server.writes == []


RELEASED: dict[str, tuple[Held, bool]] = {
    "nobody's": (None, False),
    "this attempt's": (attachment_fields("web", "make", 2), True),
    "an earlier attempt's": (attachment_fields("web", "make", 1), True),
    "a later attempt's": (attachment_fields("web", "make", 3), False),
    "another operation's": (attachment_fields("web", "other", 1), False),
    "a unit's that was made by hand": (attachment_fields("web"), False),
}


@pytest.mark.parametrize(("now", "is_released"), RELEASED.values(), ids=RELEASED)
async def test_operation_detaches_only_its_own_attachment(now: Held, is_released: bool) -> None:
    server = FakeStorageServer(now)
    server.conflicts = 1
    await attachments(server).detach(HERE, ["data"], "make", 2)
    assert server.writes == ([None] if is_released else [])


async def test_storage_changed_since_the_read_is_not_detached() -> None:
    server = FakeStorageServer(attachment_fields("web", "make", 1))
    seen = server.storage
    assert server.found
    server.found["metadata"] |= {"resourceVersion": "2"}
    await attachments(server).detach_if_unchanged(seen)
    assert server.writes == []


async def test_missing_storages_are_reported_by_field_path() -> None:
    mounts = [StorageMount(name=name, mount_path=f"/{name}") for name in ("data", "none")]
    there = FakeStorageServer(None)
    known = attachments(FakeStorageServer(None, there=False), cached=there.storage)
    problems = await known.find_missing(HERE, mounts)
    assert list(map(str, problems)) == [f"storageMounts[1].name: there is no storage none in {HERE}"]
    assert await attachments(there).find_missing(HERE, mounts[:1]) == ()


def test_recovery_checks_only_attachments_of_operations() -> None:
    caches = new_informers(cast(KubeClient, FakeStorageServer(None)), APINamespaceSettings(), KubeMetrics())
    assert caches.storages.resource is GPU_STORAGES
    for number, attached in enumerate((None, attachment_fields("web"), attachment_fields("web", "make", 1))):
        storage = FakeStorageServer(attached).storage
        about = msgspec.structs.replace(storage.metadata, name=f"data-{number}")
        caches.storages.store.put(msgspec.structs.replace(storage, metadata=about))
    assert [each.metadata.name for each in caches.storages.store.by_index("attached", "attached")] == ["data-2"]
