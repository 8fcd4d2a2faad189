"""The storage attacher attaches free storages, rejects storages in use, and detaches only its own attacher."""

from typing import Any, cast

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import StorageMount
from gpu_runtime.contract.crd.operation import (
    Operation,
    OperationSpec,
    OperationState,
    OperationStatus,
    OperationTarget,
    OperationType,
)
from gpu_runtime.contract.errors import BeingDeleted, Conflict, StorageInUse
from gpu_runtime.contract.operation_rules import AttachState, attach_fault, attach_state
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey, ObjectMeta
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import new_informers
from gpu_runtime.runtime_api.operations.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.settings import APINamespaceSettings

NAMESPACE = "runtime-instance"
AttachedTo = dict[str, Any] | None


class FakeStorageServer:
    """An API server with one storage or none. It counts reads and records writes."""

    def __init__(self, attached_to: AttachedTo, *, deleting: bool = False, exists: bool = True) -> None:
        metadata = {"name": "data", "namespace": NAMESPACE, "uid": "u", "resourceVersion": "1"}
        deletion = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
        self.document: dict[str, Any] | None = None
        if exists:
            self.document = {"metadata": metadata | deletion, "spec": {"size": "1Gi", "attachedTo": attached_to}}
        self.reads = 0
        self.writes: list[AttachedTo] = []
        self.conflicts = 0
        """How many writes conflict with another write that does not change the attachment."""

    @property
    def storage(self) -> GPUStorage:
        if self.document is None:
            raise kube.KubeNotFound(kube.ApiStatus(code=404, message="none"))
        return msgspec.convert(self.document, GPUStorage)

    def with_options(self, **_: Any) -> "FakeStorageServer":
        return self

    async def get(self, _kind: Any, _key: ObjectKey) -> GPUStorage:
        self.reads += 1
        return self.storage

    async def merge_patch(self, _kind: Any, _key: ObjectKey, patch: Any, *, resource_version: str) -> GPUStorage:
        before = self.storage
        if self.conflicts:
            self.conflicts -= 1
            self.increase_version()
        if before.metadata.resource_version != resource_version or self.storage != before:
            raise kube.KubeConflict(kube.ApiStatus(code=409, message="modified"))
        assert self.document
        desired = patch["spec"]["attachedTo"]
        fields = desired and {name: value for name, value in desired.items() if value is not None}
        self.document["spec"]["attachedTo"] = fields
        self.increase_version()
        self.writes.append(desired)
        return self.storage

    def increase_version(self) -> None:
        assert self.document
        metadata = self.document["metadata"]
        self.document["metadata"] = metadata | {"resourceVersion": str(int(metadata["resourceVersion"]) + 1)}


def attacher(server: FakeStorageServer, cached: GPUStorage | None = None) -> StorageAttacher:
    client = cast(KubeClient, server)
    informers = new_informers(client, APINamespaceSettings(), KubeMetrics())
    if cached is not None:
        informers.storages.store.put(cached)
    return StorageAttacher(client, informers)


def attachment_fields(unit: str = "web", operation: str = "", attempt: int = 0) -> dict[str, Any]:
    return {
        "unit": unit,
        "operationID": operation,
        "operationUID": operation and f"{operation}-uid",
        "attempt": attempt,
    }


def attachment(unit: str = "web", operation: str = "make", attempt: int = 1) -> Attachment:
    return Attachment(unit=unit, operation_id=operation, operation_uid=f"{operation}-uid", attempt=attempt)


TARGET = OperationTarget(kind="GPUUnit", namespace=NAMESPACE, name="web")
CREATED = attachment()
UPDATED = Attachment(unit="web")
NO_WRITES: list[AttachedTo] = []
WRITTEN: AttachedTo = {"unit": "web", "operationID": None, "operationUID": None, "attempt": 0}

STATES: dict[str, tuple[AttachedTo, Attachment, AttachState]] = {
    "free, for a create": (None, CREATED, AttachState.FREE),
    "free, for an update": (None, UPDATED, AttachState.FREE),
    "attached by this attempt": (attachment_fields("web", "make", 1), CREATED, AttachState.ATTACHED),
    "attached by an earlier attempt": (attachment_fields("web", "make", 0), CREATED, AttachState.FREE),
    "attached by a later attempt": (attachment_fields("web", "make", 2), CREATED, AttachState.NEWER),
    "update of the unit that the operation created": (attachment_fields("web", "make", 3), UPDATED, AttachState.FREE),
    "update of a unit without an operation": (attachment_fields("web"), UPDATED, AttachState.ATTACHED),
    "another unit": (attachment_fields("other"), CREATED, AttachState.IN_USE),
    "another unit, for an update": (attachment_fields("other", "make-other", 1), UPDATED, AttachState.IN_USE),
    "earlier unit with the same name": (attachment_fields("web", "before", 1), CREATED, AttachState.IN_USE),
    "unit with the same name and without an operation": (attachment_fields("web"), CREATED, AttachState.IN_USE),
}


@pytest.mark.parametrize(("current", "holder", "state"), STATES.values(), ids=STATES)
def test_attachment_decides_whether_a_holder_may_attach(
    current: AttachedTo, holder: Attachment, state: AttachState
) -> None:
    assert attach_state(FakeStorageServer(current).storage, holder) is state
    assert attach_state(FakeStorageServer(current, deleting=True).storage, holder) is AttachState.DELETED
    assert attach_state(None, holder) is AttachState.DELETED


@pytest.mark.parametrize(
    ("current", "writes"),
    [
        (None, [WRITTEN]),
        (attachment_fields("web", "make", 3), [WRITTEN]),
        (attachment_fields("web"), NO_WRITES),
    ],
)
async def test_unit_attaches_a_free_or_own_storage(current: AttachedTo, writes: list[AttachedTo]) -> None:
    server = FakeStorageServer(current)
    await attacher(server).attach(NAMESPACE, ["data"], "web")
    assert server.writes == writes


REJECTED: dict[str, tuple[FakeStorageServer, Attachment, type[Conflict], str]] = {
    "another unit": (
        FakeStorageServer(attachment_fields("other")),
        CREATED,
        StorageInUse,
        "data is attached to unit other; only one unit at a time",
    ),
    "another unit, for an update": (
        FakeStorageServer(attachment_fields("other", "make-other", 1)),
        UPDATED,
        StorageInUse,
        "attached to unit other",
    ),
    "earlier unit with the same name": (
        FakeStorageServer(attachment_fields("web", "before", 1)),
        CREATED,
        StorageInUse,
        "attached to an earlier unit web",
    ),
    "being deleted": (
        FakeStorageServer(None, deleting=True),
        UPDATED,
        BeingDeleted,
        "storage data is being deleted",
    ),
    "attached by this operation and being deleted": (
        FakeStorageServer(attachment_fields("web", "make", 1), deleting=True),
        UPDATED,
        BeingDeleted,
        "is being deleted",
    ),
}


@pytest.mark.parametrize(("server", "holder", "fault", "message"), REJECTED.values(), ids=REJECTED)
async def test_attach_of_an_unavailable_storage_is_rejected(
    server: FakeStorageServer, holder: Attachment, fault: type[Conflict], message: str
) -> None:
    rejection = attach_fault(server.storage, "data", holder)
    assert type(rejection) is fault
    assert message in rejection.message
    if not holder.operation_id:
        with pytest.raises(fault, match=message):
            await attacher(server).attach(NAMESPACE, ["data"], holder.unit)
    assert server.writes == []


async def test_attach_of_a_deleted_storage_is_rejected() -> None:
    with pytest.raises(Conflict, match="storage data was deleted") as raised:
        await attacher(FakeStorageServer(None, exists=False)).attach(NAMESPACE, ["data"], "web")
    assert raised.type is BeingDeleted


async def test_attach_is_retried_after_a_write_conflict() -> None:
    server = FakeStorageServer(None)
    server.conflicts = 2
    await attacher(server).attach(NAMESPACE, ["data"], "web")
    assert server.writes == [WRITTEN]


async def test_attach_reads_live_only_when_the_cache_shows_another_holder() -> None:
    server = FakeStorageServer(None)
    await attacher(server, cached=server.storage).attach(NAMESPACE, ["data"], "web")
    assert (server.reads, server.writes) == (0, [WRITTEN])
    free = FakeStorageServer(None)
    stale = attacher(free, cached=FakeStorageServer(attachment_fields("other")).storage)
    await stale.attach(NAMESPACE, ["data"], "web")
    assert (free.reads, free.writes) == (1, [WRITTEN])


async def test_attach_with_a_stale_cache_never_takes_the_storage_of_another_unit() -> None:
    server = FakeStorageServer(attachment_fields("other"))
    stale = FakeStorageServer(None).storage
    server.increase_version()
    with pytest.raises(StorageInUse, match="attached to unit other"):
        await attacher(server, cached=stale).attach(NAMESPACE, ["data"], "web")
    assert server.writes == []


DETACHED: dict[str, tuple[AttachedTo, bool]] = {
    "free": (None, False),
    "attached by this attempt": (attachment_fields("web", "make", 2), True),
    "attached by an earlier attempt": (attachment_fields("web", "make", 1), True),
    "attached by a later attempt": (attachment_fields("web", "make", 3), False),
    "attached by another operation": (attachment_fields("web", "other", 1), False),
    "attached by an evicted operation with the same ID": (
        attachment_fields("web", "make", 1) | {"operationUID": "evicted"},
        False,
    ),
    "attached by a unit without an operation": (attachment_fields("web"), False),
}


@pytest.mark.parametrize(("current", "is_detached"), DETACHED.values(), ids=DETACHED)
async def test_operation_detaches_only_its_own_attachment(current: AttachedTo, is_detached: bool) -> None:
    server = FakeStorageServer(current)
    server.conflicts = 1
    spec = OperationSpec(operation_id="make", type=OperationType.CREATE_UNIT, request_hash="", target=TARGET)
    status = OperationStatus(state=OperationState.RUNNING, attempt=2)
    operation = Operation(metadata=ObjectMeta(uid="make-uid"), spec=spec, status=status)
    await attacher(server).detach(NAMESPACE, ["data"], operation)
    assert server.writes == ([None] if is_detached else [])


async def test_storage_changed_since_the_read_is_not_detached() -> None:
    server = FakeStorageServer(attachment_fields("web", "make", 1))
    stale = server.storage
    server.increase_version()
    await attacher(server).write(stale, None)
    assert server.writes == []


async def test_missing_storages_are_reported_by_field_path() -> None:
    mounts = [StorageMount(name=name, mount_path=f"/{name}") for name in ("data", "none")]
    existing = FakeStorageServer(None)
    cached = attacher(FakeStorageServer(None, exists=False), cached=existing.storage)
    errors = await cached.find_missing(NAMESPACE, mounts)
    assert list(map(str, errors)) == [f"storageMounts[1].name: storage none does not exist in namespace {NAMESPACE}"]
    assert await attacher(existing).find_missing(NAMESPACE, mounts[:1]) == ()


def test_recovery_checks_only_attachments_of_operations() -> None:
    informers = new_informers(cast(KubeClient, FakeStorageServer(None)), APINamespaceSettings(), KubeMetrics())
    assert informers.storages.resource is GPU_STORAGES
    for number, attached in enumerate((None, attachment_fields("web"), attachment_fields("web", "make", 1))):
        storage = FakeStorageServer(attached).storage
        metadata = msgspec.structs.replace(storage.metadata, name=f"data-{number}")
        informers.storages.store.put(msgspec.structs.replace(storage, metadata=metadata))
    assert [each.metadata.name for each in informers.storages.store.by_index("attached", "attached")] == ["data-2"]
