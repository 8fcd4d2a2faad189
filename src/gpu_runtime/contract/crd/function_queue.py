"""The FunctionQueue resource: the functionID of a function, and the workers that may read its queue.

The name of a FunctionQueue is a hash of the requestID. So the creation of the FunctionQueue decides which function owns
the requestID. FunctionQueues are in the system namespace, in which authors of functions cannot write.
"""

from typing import Annotated, ClassVar

from msgspec import field

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.markers import AGE_COLUMN, CrdDefinition, PrinterColumn, immutable, openapi
from gpu_runtime.contract.crd.well_known import (
    FUNCTION_ID_PATTERN,
    GROUP,
    REQUEST_ID_PATTERN,
    VERSION,
    function_queue_name,
)
from gpu_runtime.kube.meta import ApiResource, KubeObject, KubeStruct, Manifest, ObjectKey


class FunctionRef(KubeStruct, frozen=True, kw_only=True):
    """The function's own unit."""

    namespace: str
    """The namespace of the unit."""

    name: str
    """The name of the unit."""

    uid: str
    """The UID of the unit. A unit that is deleted and created again has another UID."""

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.namespace, self.name)


class FunctionQueueSpec(KubeStruct, frozen=True, kw_only=True):
    """The function that owns the queue, and its workers."""

    RULES: ClassVar = (immutable("requestID", "the name of the object is a hash of the requestID"),)

    function_id: Annotated[str, openapi(pattern=FUNCTION_ID_PATTERN, maxLength=63)] = field(name="functionID")
    """The ID of the function. The controller manager chooses it at random. The NATS subjects of the function contain
    this ID."""

    request_id: Annotated[str, openapi(pattern=REQUEST_ID_PATTERN, maxLength=63)] = field(name="requestID")
    """The requestID that the function owns."""

    function: FunctionRef
    """The function's own unit."""

    workers: dict[str, str] = field(default_factory=dict)
    """The names of the workers that the activator created, by the UID of their unit. A unit with workerOf that is not
    in this map gets no pod."""


class FunctionQueueStatus(KubeStruct, frozen=True, kw_only=True):
    """A FunctionQueue has no status."""


class FunctionQueue(KubeObject, frozen=True, kw_only=True):
    """The queue of a function: its functionID, the function that owns its requestID, and its workers. The controller
    manager creates the object for each function, and deletes the object when the function is deleted or disabled. The
    activator adds the workers that it creates."""

    spec: FunctionQueueSpec
    status: FunctionQueueStatus = FunctionQueueStatus()


FUNCTION_QUEUES = ApiResource(GROUP, VERSION, "FunctionQueue", "functionqueues", FunctionQueue)

DEFINITION = CrdDefinition(
    FUNCTION_QUEUES,
    short_names=("fq",),
    printer_columns=(
        PrinterColumn("RequestID", ".spec.requestID"),
        PrinterColumn("FunctionID", ".spec.functionID"),
        PrinterColumn("Namespace", ".spec.function.namespace"),
        PrinterColumn("Function", ".spec.function.name"),
        AGE_COLUMN,
    ),
    selectable_fields=(".spec.functionID",),
)


def queue_manifest(function: GPUUnit, system_namespace: str, function_id: str) -> Manifest:
    """Return the manifest of the FunctionQueue of a function."""
    metadata, request_id = function.metadata, function.spec.serverless.request_id if function.spec.serverless else ""
    return {
        "metadata": {"namespace": system_namespace, "name": function_queue_name(request_id)},
        "spec": {
            "functionID": function_id,
            "requestID": request_id,
            "function": {"namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid},
        },
    }


def served_unit_uids(queue: FunctionQueue) -> tuple[str, ...]:
    """Return the UIDs of the units that may read the queue: the function's own unit and its workers."""
    return (queue.spec.function.uid, *queue.spec.workers)
