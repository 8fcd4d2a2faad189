"""The durable form of create requests: what an Operation contains, and what request hashes cover.

These formats outlive a process: a replica of another version may resume an operation, and a replay is compared by its
hash. The bodies of the HTTP API are separate, so a renamed field of a body changes nothing here. Golden files in
tests/unit/contract/golden show every format; a change of a golden file makes earlier operations undecodable.
"""

from typing import TypeVar

import msgspec
from msgspec import field

from gpu_runtime.contract.crd.gpu_unit import Access, GPUUnitSpec, Serverless, StorageMount
from gpu_runtime.contract.crd.operation import Operation, OperationType, SourceStock
from gpu_runtime.contract.crd.probes import Probes
from gpu_runtime.contract.crd.reservation import Reservation, reservation_fields
from gpu_runtime.contract.crd.stock_pool import StockPoolSpec
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.contract.prepared_units import with_default_probe
from gpu_runtime.contract.stock_grades import StockGrade
from gpu_runtime.kube.meta import KubeStruct


class RecordedUnitRequest(KubeStruct, frozen=True, kw_only=True):
    """The request of a CreateUnit operation. The stock unit supplies the reservation."""

    operation_id: str = field(name="operationID")
    name: str
    namespace: str = ""
    spec_name: str
    stock_namespace: str = ""
    grades: tuple[str, ...] = ()
    """The grades of stock that the operation may use. Empty: all grades."""
    image: str
    template: Template = Template()
    access: Access | None = None
    probes: Probes | None = None
    storage_mounts: tuple[StorageMount, ...] = ()
    serverless: Serverless | None = None
    max_duration_seconds: int | None = None
    stop_unless_extended_seconds: int | None = None
    delete_after_seconds: int | None = None

    @property
    def allowed_grades(self) -> tuple[StockGrade, ...]:
        """The grades that the operation may use, the warmest first."""
        return tuple(grade for grade in StockGrade if not self.grades or grade.value in self.grades)

    @property
    def storage_names(self) -> list[str]:
        """The names of the storages to attach, in an order that is the same for all operations.

        So it cannot happen that each of two operations has attached a storage that the other one needs.
        """
        return sorted({mount.name for mount in self.storage_mounts})

    def unit_spec(self, stock: SourceStock | None = None) -> GPUUnitSpec:
        """Return the unit's spec, with the reservation of the stock unit if one is selected."""
        return GPUUnitSpec(
            **reservation_fields(stock) if stock else {},
            spec_name=self.spec_name,
            image=self.image,
            template=self.template,
            access=self.access,
            probes=with_default_probe(self.probes, self.serverless),
            storage_mounts=self.storage_mounts,
            serverless=self.serverless,
            max_duration_seconds=self.max_duration_seconds,
            stop_unless_extended_seconds=self.stop_unless_extended_seconds,
            delete_after_seconds=self.delete_after_seconds,
        )


class ReturnedUnit(KubeStruct, frozen=True, kw_only=True):
    """The worker whose stock an operation returns."""

    namespace: str
    name: str
    uid: str


class RecordedSeedRequest(Reservation, frozen=True, kw_only=True):
    """The request of a SeedStock operation."""

    operation_id: str = field(name="operationID")
    spec_name: str
    replicas: int
    returned_from: ReturnedUnit | None = None
    """The worker whose stock the operation returns. The operation deletes the worker before it creates the stock unit,
    so that the worker and its stock never exist at the same time."""

    def unit_spec(self) -> GPUUnitSpec:
        return GPUUnitSpec(spec_name=self.spec_name, **reservation_fields(self))


class RecordedPoolRequest(Reservation, frozen=True, kw_only=True):
    """The request of a CreateStockPool operation."""

    operation_id: str = field(name="operationID")
    name: str = ""
    namespace: str = ""
    spec_name: str
    image: str = ""
    replicas: int
    template: Template = Template()
    adoptable: bool = False
    access: Access | None = None
    probes: Probes | None = None

    def pool_spec(self) -> StockPoolSpec:
        return StockPoolSpec(
            **reservation_fields(self),
            spec_name=self.spec_name,
            image=self.image,
            replicas=self.replicas,
            template=self.template,
            adoptable=self.adoptable,
            access=self.access,
            probes=self.probes,
        )


class RecordedStorageRequest(KubeStruct, frozen=True, kw_only=True):
    """The request that created a storage. Only its hash is stored, in an annotation of the storage."""

    name: str
    namespace: str = ""
    size: str
    """The size in bytes."""
    storage_class_name: str = ""


RecordedRequest = RecordedUnitRequest | RecordedSeedRequest | RecordedPoolRequest
R = TypeVar("R", bound=RecordedRequest)

OPERATION_TYPES: dict[type[KubeStruct], OperationType] = {
    RecordedUnitRequest: OperationType.CREATE_UNIT,
    RecordedSeedRequest: OperationType.SEED_STOCK,
    RecordedPoolRequest: OperationType.CREATE_STOCK_POOL,
}
"""The type of the operation that records each request."""


def recorded_request(operation: Operation, model: type[R]) -> R:
    """Return the request that the operation has recorded.

    Raises Unavailable if the request cannot be decoded. A newer version may have recorded it. Then a replica of that
    version resumes the operation.
    """
    try:
        return msgspec.json.decode(operation.request, type=model)
    except (msgspec.DecodeError, RecursionError) as error:
        id_ = operation.spec.operation_id
        raise Unavailable(f"the recorded request of operation {id_} cannot be decoded: {error}") from error
