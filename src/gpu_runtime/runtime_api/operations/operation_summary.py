"""Unfinished operations as the caches hold them: without the request, which may be large and is read when needed."""

from msgspec import field

from gpu_runtime.contract.crd.operation import OperationStatus, SourceStock, progress_of
from gpu_runtime.contract.crd.well_known import GROUP, VERSION
from gpu_runtime.kube.meta import Object, Resource, Wire


class PendingSpec(Wire, frozen=True, kw_only=True):
    operation_id: str = field(name="operationID")
    type: str
    stock: SourceStock | None = None


class PendingOperation(Object, frozen=True, kw_only=True):
    spec: PendingSpec
    status: OperationStatus = OperationStatus()

    @property
    def progress(self) -> OperationStatus:
        return progress_of(self.spec.stock, self.status, self.metadata.creation_timestamp)


PENDING_OPERATIONS = Resource(GROUP, VERSION, "Operation", "operations", PendingOperation)
