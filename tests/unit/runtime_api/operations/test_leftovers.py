"""What an operation must clean up before it can be evicted."""

import pytest

from gpu_runtime.contract.crd.gpu_storage import Attachment, GPUStorage, GPUStorageSpec
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec
from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.kube.meta import ObjectMeta
from gpu_runtime.runtime_api.operations.leftovers import Leftovers, collect_leftovers, has_leftovers
from tests.unit.runtime_api.runtime_api_objects import STOCK, operation, unit

UNIT = OperationType.CREATE_UNIT
WAITING = operation(UNIT, OperationState.ACCEPTED, attempt=1)
FAILED = operation(UNIT, OperationState.FAILED, stock=STOCK, attempt=1)
SUCCEEDED = operation(UNIT, OperationState.SUCCEEDED, stock=STOCK, attempt=1, target_uid="unit-uid")
SEEDED = operation(OperationType.SEED_STOCK, OperationState.SUCCEEDED, stock_uids=("u1", "u2"))


def created(uid: str, operation_uid: str = "op-uid") -> GPUUnit:
    annotations = {Annotation.OPERATION_UID: operation_uid}
    return GPUUnit(metadata=ObjectMeta(name=uid, uid=uid, annotations=annotations), spec=GPUUnitSpec(spec_name="g1.1"))


def attached(operation_uid: str) -> GPUStorage:
    attachment = Attachment(unit="web", operation_id="one", operation_uid=operation_uid, attempt=1)
    return GPUStorage(metadata=ObjectMeta(name="data"), spec=GPUStorageSpec(size="1Gi", attached_to=attachment))


CLAIM = collect_leftovers([unit(claimed="one")], [], [])
ATTACHMENT = collect_leftovers([], [attached("op-uid")], [])


@pytest.mark.parametrize(
    ("subject", "leftovers", "expected"),
    [
        (SUCCEEDED, Leftovers(), False),
        (SUCCEEDED, CLAIM, True),
        (FAILED, CLAIM, True),
        (WAITING, CLAIM, True),
        (SUCCEEDED, ATTACHMENT, False),  # the unit keeps its storages
        (FAILED, ATTACHMENT, True),
        (WAITING, ATTACHMENT, True),
        (SUCCEEDED, collect_leftovers([], [], [created("unit-uid")]), False),
        (SUCCEEDED, collect_leftovers([], [], [created("unit-uid"), created("other")]), True),
        (WAITING, collect_leftovers([], [], [created("other")]), True),
        (FAILED, collect_leftovers([], [], [created("other")]), True),
        (SEEDED, collect_leftovers([], [], [created("u1"), created("u2")]), False),
        (SEEDED, collect_leftovers([], [], [created("u1"), created("u3")]), True),
        (
            WAITING,
            collect_leftovers([unit(claimed="two")], [attached("two")], [created("other", "another-operation")]),
            False,
        ),
    ],
)
def test_operation_has_leftovers_until_recovery_has_cleaned_up(
    subject: Operation, leftovers: Leftovers, expected: bool
) -> None:
    assert has_leftovers(subject, leftovers) is expected
