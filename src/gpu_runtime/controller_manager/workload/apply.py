"""Makes a child what it should be: created, corrected or removed, and left alone where it is right already."""

from dataclasses import dataclass
from typing import Any

from gpu_runtime.contract.crd.conditions import Reason
from gpu_runtime.controller_manager.workload.child import fits, is_owned, replacement
from gpu_runtime.controller_manager.workload.verdict import Blocked
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.core import Deployment, Service
from gpu_runtime.kube.errors import AlreadyExists, Forbidden, Invalid, NotFound
from gpu_runtime.kube.objects import Key, Manifest, Object, Resource


@dataclass(frozen=True)
class Child:
    """A child as it is and as it should be; None where there is none, and where there should be none."""

    resource: Resource[Any]
    found: Deployment | Service | None
    wanted: Manifest | None
    refused: Reason
    """What to report where Kubernetes does not take it."""


class Refused(Exception):
    """A child could not be made, for a reason that belongs into the owner's status."""

    def __init__(self, blocked: Blocked) -> None:
        super().__init__(blocked.message)
        self.blocked = blocked


async def make(client: Client, owner: Object, child: Child) -> None:
    """Conflicts are raised as they are: somebody was faster, and the next look at the cache tells."""
    try:
        await _make(client, owner, child)
    except (Forbidden, Invalid) as refusal:
        raise Refused(Blocked(child.refused, f"{child.resource.kind} is refused: {refusal}")) from refusal


async def _make(client: Client, owner: Object, child: Child) -> None:
    found, wanted = child.found, child.wanted
    if wanted is None:
        if found is not None and is_owned(found, owner):
            await _remove(client, child.resource, found)
    elif found is None:
        await _create(client, owner, child.resource, wanted)
    elif not is_owned(found, owner):
        raise Refused(_taken(child.resource, found, owner))
    elif found.metadata.deletion_timestamp is None and not fits(found, wanted):
        await client.replace(child.resource, replacement(found, wanted))


async def _create(client: Client, owner: Object, resource: Resource[Any], wanted: Manifest) -> None:
    try:
        await client.create(resource, wanted)
    except AlreadyExists:
        found = await client.get(resource, Key(wanted["metadata"]["namespace"], wanted["metadata"]["name"]))
        if not is_owned(found, owner):
            raise Refused(_taken(resource, found, owner)) from None
        # Otherwise it was made a moment ago, and the cache will tell.


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
