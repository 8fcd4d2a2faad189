"""Makes a child what it should be: created, corrected or removed, and left alone where it is right already."""

from dataclasses import dataclass
from typing import Any

from gpu_runtime.contract.crd.conditions import Reason
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.controller_manager.workload.drift import fits, is_orphan, is_owned, replacement
from gpu_runtime.controller_manager.workload.unstructured import Owned
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.errors import AlreadyExists, Forbidden, Invalid, NotFound
from gpu_runtime.kube.meta import Key, Manifest, Object, Resource


@dataclass(frozen=True)
class Child:
    """A child as it is and as it should be; None where there is none, and where there should be none."""

    resource: Resource[Any]
    found: Owned | None
    wanted: Manifest | None
    refused: Reason
    """What to report where Kubernetes does not take it."""


class Refused(Exception):
    """A child could not be made, for a reason that belongs into the owner's status."""

    def __init__(self, blocked: Blocked) -> None:
        super().__init__(blocked.message)
        self.blocked = blocked


async def make(client: Client, owner: Object, child: Child) -> Owned | None:
    """What was written, if anything had to be.

    Conflicts are raised as they are: somebody was faster, and the next look at the cache tells.
    """
    try:
        return await _make(client, owner, child)
    except (Forbidden, Invalid) as refusal:
        raise Refused(Blocked(child.refused, f"{child.resource.kind} is refused: {refusal}")) from refusal


async def _make(client: Client, owner: Object, child: Child) -> Owned | None:
    found, wanted = child.found, child.wanted
    if wanted is None:
        if found is not None and is_owned(found, owner):
            await _remove(client, child.resource, found)
        return None
    if found is None:
        return await _create(client, owner, child.resource, wanted)
    return await _correct(client, owner, child.resource, found, wanted)


async def _create(client: Client, owner: Object, resource: Resource[Any], wanted: Manifest) -> Owned | None:
    try:
        created: Owned = await client.create(resource, wanted)
    except AlreadyExists:
        # Made a moment ago, or a stranger's, or the label is gone by which the cache selects.
        key = Key(wanted["metadata"]["namespace"], wanted["metadata"]["name"])
        return await _correct(client, owner, resource, await client.get(resource, key), wanted)
    return created


async def _correct(
    client: Client, owner: Object, resource: Resource[Any], found: Owned, wanted: Manifest
) -> Owned | None:
    if not is_owned(found, owner) and not is_orphan(found, wanted):
        if found.metadata.deletion_timestamp is None and await _is_left(client, found, owner):
            await _remove(client, resource, found)
        raise Refused(_taken(resource, found, owner))
    if found.metadata.deletion_timestamp is not None or fits(found, wanted):
        return None
    corrected: Owned = await client.replace(resource, replacement(found, wanted))
    return corrected


async def _is_left(client: Client, found: Object, owner: Object) -> bool:
    """Whether it is an earlier unit's of that name. Kubernetes collects that; but a unit that is deleted and made again
    while the collector reads everything anew looks to it like one that was changed.

    It is asked for the unit that is there now: the one that is at hand may itself be the earlier one.
    """
    reference = found.metadata.controller
    if reference is None or (reference.kind, reference.name) != (GPU_UNITS.kind, owner.metadata.name):
        return False
    try:
        there = await client.get(GPU_UNITS, owner.metadata.key)
    except NotFound:
        return False
    return there.metadata.uid != reference.uid


async def _remove(client: Client, resource: Resource[Any], found: Object) -> None:
    try:
        await client.delete(resource, found.metadata.key, uid=found.metadata.uid)
    except NotFound:
        return


def _taken(resource: Resource[Any], found: Object, owner: Object) -> Blocked:
    """The name is in use: for a moment by a namesake's child that is on its way out, or for good by a stranger's."""
    reference, name = found.metadata.controller, found.metadata.name
    if reference is not None and reference.name == owner.metadata.name:
        return Blocked(Reason.NAME_TAKEN, f"{resource.kind} {name} of an earlier one is still there", failed=False)
    return Blocked(Reason.NAME_TAKEN, f"{resource.kind} {name} exists and belongs to somebody else: rename one of them")
