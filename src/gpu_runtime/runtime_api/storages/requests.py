"""What callers ask of storages."""

from msgspec import UNSET, UnsetType

from gpu_runtime.contract.crd.conditions import StoragePhase
from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.runtime_api.http.paging import PagedQuery
from gpu_runtime.runtime_api.http.route import Body, Query


class CreateStorage(Body, frozen=True, kw_only=True):
    """Persistent data on a volume of its own. Its name is its identity: the same request again makes nothing new."""

    name: str
    """The storage's name, and its claim's."""

    namespace: str = ""
    """Where the storage is made, and where units can mount it. Default: the first namespace that the configuration
    allows."""

    size: str
    """How much it holds, for example 20Gi. It only grows."""

    storage_class_name: str = ""
    """The StorageClass that provides the volume. Default: rook-ceph-block."""

    def spec(self) -> GPUStorageSpec:
        return GPUStorageSpec(size=self.size, storage_class_name=self.storage_class_name)


class UpdateStorage(Body, frozen=True, kw_only=True):
    """What is to change."""

    size: str
    """How much it is to hold: as much as now, or more."""


class StorageQuery(Query, frozen=True, kw_only=True):
    """Which of the storages of that name."""

    namespace: str = ""
    """Where the storage is. Default: the first namespace that the configuration allows."""


class ListStorages(PagedQuery, frozen=True, kw_only=True):
    """Which storages."""

    namespace: str = ""
    """Only those of this namespace. Default: those of every namespace that the configuration allows."""

    phase: StoragePhase | UnsetType = UNSET
    """Only those in this phase."""

    mounted: bool | UnsetType = UNSET
    """true: only those that a unit holds; false: only free ones."""
