"""Why retention must keep an operation: its unit exists, or recovery must still clean up after it. Pure.

The Operation of an existing unit proves that the unit was created from stock. A worker without its Operation could not
return its stock.

Recovery decides from the Operation what to do with these objects. Without the Operation it could only guess. For
example, it would release the claim of a consumed stock unit, and a second handoff would use the stock unit again. So
retention evicts no operation that has leftovers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import AnyOperation
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.operation_rules import has_succeeded
from gpu_runtime.kube.meta import KubeObject


@dataclass(frozen=True)
class Leftovers:
    claims: frozenset[str] = frozenset()
    """The operationIDs of all claims on stock units and prepared pods."""
    attachments: frozenset[str] = frozenset()
    """The UIDs of the operations that have attached storages."""
    created: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The UIDs of all objects that operations created, by the UID of the operation."""
    units: frozenset[str] = frozenset()
    """The UIDs of all units."""


def collect_leftovers(
    claimed: Iterable[KubeObject],
    attached: Iterable[GPUStorage],
    created: Iterable[KubeObject],
    units: Iterable[GPUUnit] = (),
) -> Leftovers:
    by_operation: dict[str, set[str]] = {}
    for each in created:
        if operation_uid := each.metadata.annotations.get(Annotation.OPERATION_UID):
            by_operation.setdefault(operation_uid, set()).add(each.metadata.uid)
    return Leftovers(
        claims=frozenset(each.metadata.annotations[Annotation.CLAIMED_BY] for each in claimed),
        attachments=frozenset(each.spec.attached_to.operation_uid for each in attached if each.spec.attached_to),
        created={operation_uid: frozenset(uids) for operation_uid, uids in by_operation.items()},
        units=frozenset(each.metadata.uid for each in units),
    )


def has_living_unit(operation: AnyOperation, leftovers: Leftovers) -> bool:
    """Whether the unit that the operation has committed to still exists."""
    return operation.status.target_uid in leftovers.units


def has_leftovers(operation: AnyOperation, leftovers: Leftovers) -> bool:
    """Whether recovery still needs this operation, which is not in progress, to clean up."""
    id_, uid, status = operation.spec.operation_id, operation.metadata.uid, operation.effective_status
    is_attached = uid in leftovers.attachments and not has_succeeded(operation)  # a unit keeps its storages
    is_committed = leftovers.created.get(uid, frozenset()) <= status.created_uids
    return id_ in leftovers.claims or is_attached or not is_committed
