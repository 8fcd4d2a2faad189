"""A model of Operation objects without the request. The request may be large, and is read only when it is needed."""

from msgspec import field

from gpu_runtime.contract.crd.operation import OperationStatus, SourceStock, effective_status
from gpu_runtime.contract.crd.well_known import GROUP, VERSION
from gpu_runtime.kube.meta import ApiResource, KubeObject, KubeStruct


class OperationSummarySpec(KubeStruct, frozen=True, kw_only=True):
    operation_id: str = field(name="operationID")
    type: str
    stock: SourceStock | None = None


class OperationSummary(KubeObject, frozen=True, kw_only=True):
    spec: OperationSummarySpec
    status: OperationStatus = OperationStatus()

    @property
    def progress(self) -> OperationStatus:
        return effective_status(self.spec.stock, self.status, self.metadata.creation_timestamp)


OPERATION_SUMMARIES = ApiResource(GROUP, VERSION, "Operation", "operations", OperationSummary)
