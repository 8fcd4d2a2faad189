"""Makes a child what it should be: created, corrected or removed, and left alone where it is right already."""

from dataclasses import dataclass
from typing import Any

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.controller_manager.workload.drift import is_orphan, is_owned, matches_desired, update_manifest
from gpu_runtime.controller_manager.workload.unstructured import RawObject
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeAlreadyExists, KubeForbidden, KubeInvalid, KubeNotFound
from gpu_runtime.kube.meta import ApiResource, KubeObject, Manifest, ObjectKey


@dataclass(frozen=True)
class DesiredChild:
    """A child as it is and as it should be; None where there is none, and where there should be none."""

    resource: ApiResource[Any]
    live: RawObject | None
    desired: Manifest | None
    sync_failed_reason: ReadyReason
    """What to report where Kubernetes does not take it."""


class ChildRejected(Exception):
    """A child could not be made, for a reason that belongs into the owner's status."""

    def __init__(self, blocked: Blocked) -> None:
        super().__init__(blocked.message)
        self.blocked = blocked


async def apply_child(client: KubeClient, owner: KubeObject, child: DesiredChild) -> RawObject | None:
    """What was written, if anything had to be.

    Conflicts are raised as they are: somebody was faster, and the next look at the cache tells.
    """
    try:
        return await _apply(client, owner, child)
    except (KubeForbidden, KubeInvalid) as refusal:
        raise ChildRejected(
            Blocked(child.sync_failed_reason, f"{child.resource.kind} is refused: {refusal}")
        ) from refusal


async def _apply(client: KubeClient, owner: KubeObject, child: DesiredChild) -> RawObject | None:
    found, wanted = child.live, child.desired
    if wanted is None:
        if found is not None and is_owned(found, owner):
            await _delete(client, child.resource, found)
        return None
    if found is None:
        return await _create(client, owner, child.resource, wanted)
    return await _update(client, owner, child.resource, found, wanted)


async def _create(
    client: KubeClient, owner: KubeObject, resource: ApiResource[Any], wanted: Manifest
) -> RawObject | None:
    try:
        created: RawObject = await client.create(resource, wanted)
    except KubeAlreadyExists:
        # Made a moment ago, or a stranger's, or the label is gone by which the cache selects.
        key = ObjectKey(wanted["metadata"]["namespace"], wanted["metadata"]["name"])
        return await _update(client, owner, resource, await client.get(resource, key), wanted)
    return created


async def _update(
    client: KubeClient, owner: KubeObject, resource: ApiResource[Any], found: RawObject, wanted: Manifest
) -> RawObject | None:
    if not is_owned(found, owner) and not is_orphan(found, wanted):
        if found.metadata.deletion_timestamp is None and await _is_stale_child(client, found, owner):
            await _delete(client, resource, found)
        raise ChildRejected(_name_conflict(resource, found, owner))
    if found.metadata.deletion_timestamp is not None or matches_desired(found, wanted):
        return None
    corrected: RawObject = await client.replace(resource, update_manifest(found, wanted))
    return corrected


async def _is_stale_child(client: KubeClient, found: KubeObject, owner: KubeObject) -> bool:
    """Whether it is an earlier unit's of that name. Kubernetes collects that; but a unit that is deleted and made again
    while the collector reads everything anew looks to it like one that was changed.

    It is asked for the unit that is there now: the one that is at hand may itself be the earlier one.
    """
    reference = found.metadata.controller_ref
    if reference is None or (reference.kind, reference.name) != (GPU_UNITS.kind, owner.metadata.name):
        return False
    try:
        there = await client.get(GPU_UNITS, owner.metadata.key)
    except KubeNotFound:
        return False
    return there.metadata.uid != reference.uid


async def _delete(client: KubeClient, resource: ApiResource[Any], found: KubeObject) -> None:
    try:
        await client.delete(resource, found.metadata.key, uid=found.metadata.uid)
    except KubeNotFound:
        return


def _name_conflict(resource: ApiResource[Any], found: KubeObject, owner: KubeObject) -> Blocked:
    """The name is in use: for a moment by a namesake's child that is on its way out, or for good by a stranger's."""
    reference, name = found.metadata.controller_ref, found.metadata.name
    if reference is not None and reference.name == owner.metadata.name:
        return Blocked(ReadyReason.NAME_TAKEN, f"{resource.kind} {name} of an earlier one is still there", failed=False)
    return Blocked(
        ReadyReason.NAME_TAKEN, f"{resource.kind} {name} exists and belongs to somebody else: rename one of them"
    )
