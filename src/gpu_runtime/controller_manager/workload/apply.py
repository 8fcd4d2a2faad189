"""Applies one child object: creates, updates or deletes it. If the child matches the desired state, writes nothing."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.controller_manager.unstructured import RawObject
from gpu_runtime.controller_manager.workload.drift import is_orphan, is_owned, matches_desired, update_manifest
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeAlreadyExists, KubeForbidden, KubeInvalid, KubeNotFound
from gpu_runtime.kube.live_objects import find_live
from gpu_runtime.kube.meta import ApiResource, KubeObject, Manifest, ObjectKey


@dataclass(frozen=True)
class DesiredChild:
    """The live and the desired state of a child. `live` is None if the child does not exist. `desired` is None if the
    child must not exist."""

    resource: ApiResource[Any]
    live: RawObject | None
    desired: Manifest | None
    sync_failed_reason: ReadyReason
    """Reason of the owner's Ready condition if the API server rejects the child."""


class ChildRejected(Exception):
    """A child cannot be created or updated. The status of the owner reports the cause."""

    def __init__(self, blocked: Blocked) -> None:
        super().__init__(blocked.message)
        self.blocked = blocked


async def apply_child(client: KubeClient, owner: KubeObject, child: DesiredChild) -> RawObject | None:
    """Apply the child and return the written object, or None if no write was necessary or the child was deleted.

    This function does not handle a conflict with the write of another client. The controller requeues the owner.
    """
    try:
        return await _apply(client, owner, child)
    except (KubeForbidden, KubeInvalid) as error:
        text = f"the API server rejected the {child.resource.kind}: {error}"
        raise ChildRejected(Blocked(child.sync_failed_reason, text)) from error


async def _apply(client: KubeClient, owner: KubeObject, child: DesiredChild) -> RawObject | None:
    live, desired = child.live, child.desired
    if desired is None:
        if live is not None and is_owned(live, owner):
            await _delete(client, child.resource, live)
        return None
    if live is None:
        return await _create(client, owner, child.resource, desired)
    return await _update(client, owner, child.resource, live, desired)


async def _create(
    client: KubeClient, owner: KubeObject, resource: ApiResource[Any], desired: Manifest
) -> RawObject | None:
    try:
        created: RawObject = await client.create(resource, desired)
    except KubeAlreadyExists:
        # The cache is stale, the object belongs to another owner, or the label that the informer selects was removed.
        key = ObjectKey(desired["metadata"]["namespace"], desired["metadata"]["name"])
        return await _update(client, owner, resource, await client.get(resource, key), desired)
    return created


async def _update(
    client: KubeClient, owner: KubeObject, resource: ApiResource[Any], live: RawObject, desired: Manifest
) -> RawObject | None:
    if not is_owned(live, owner) and not is_orphan(live, desired):
        if live.metadata.deletion_timestamp is None and await _is_stale_child(client, live, owner):
            await _delete(client, resource, live)
        raise ChildRejected(_name_conflict(resource, live, owner))
    if live.metadata.deletion_timestamp is not None or matches_desired(live, desired):
        return None
    updated: RawObject = await client.replace(resource, update_manifest(live, desired))
    return updated


async def _is_stale_child(client: KubeClient, live: KubeObject, owner: KubeObject) -> bool:
    """Return whether the object is a child of a deleted unit with the same name.

    Normally the Kubernetes garbage collector deletes such a child. But after a restart of the API server, the garbage
    collector lists all objects again. If a unit is deleted and created again during this time, the garbage collector
    treats the two units as one that was updated, and does not delete the child.

    Read the unit from the API server, because the owner in the cache may be the deleted unit.
    """
    reference = live.metadata.controller_ref
    if reference is None or (reference.kind, reference.name) != (GPU_UNITS.kind, owner.metadata.name):
        return False
    current = await find_live(client, GPU_UNITS, owner.metadata.key)
    return current is not None and current.metadata.uid != reference.uid


async def _delete(client: KubeClient, resource: ApiResource[Any], live: KubeObject) -> None:
    with suppress(KubeNotFound):
        await client.delete(resource, live.metadata.key, uid=live.metadata.uid)


def _name_conflict(resource: ApiResource[Any], live: KubeObject, owner: KubeObject) -> Blocked:
    """Report that another object has the child's name.

    The object belongs either to a deleted owner with the same name, and is then deleted soon, or to another owner.
    """
    reference, name = live.metadata.controller_ref, live.metadata.name
    if reference is not None and reference.name == owner.metadata.name:
        deleted_owner = f"{reference.kind} {reference.name}"
        text = f"{resource.kind} {name} of the deleted {deleted_owner} still exists: waiting for its deletion"
        return Blocked(ReadyReason.NAME_TAKEN, text, failed=False)
    text = f"{resource.kind} {name} already exists and belongs to another owner: delete it, or choose another name"
    return Blocked(ReadyReason.NAME_TAKEN, text)
