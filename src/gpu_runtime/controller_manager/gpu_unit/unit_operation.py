"""Reads the Operation that the annotations of a unit name.

A user who can write GPUUnits can forge these annotations, but not an Operation. So `belongs_to` compares both.
"""

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import OPERATIONS, Operation
from gpu_runtime.contract.crd.well_known import Annotation, operation_name
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.live_objects import find_live
from gpu_runtime.kube.meta import ObjectKey


async def find_operation(client: KubeClient, system_namespace: str, unit: GPUUnit) -> Operation | None:
    operation_id = unit.metadata.annotations.get(Annotation.OPERATION_ID, "")
    return await find_live(client, OPERATIONS, ObjectKey(system_namespace, operation_name(operation_id)))


def belongs_to(operation: Operation, unit: GPUUnit) -> bool:
    """Whether the operation has created this unit, or will do so. A unit with copied annotations has another UID."""
    return (
        operation.metadata.uid == unit.metadata.annotations.get(Annotation.OPERATION_UID)
        and operation.target_key == unit.metadata.key
        and operation.status.target_uid in (None, unit.metadata.uid)
    )
