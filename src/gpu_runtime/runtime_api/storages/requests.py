"""The request bodies and query parameters of the storage routes."""

from msgspec import UNSET, UnsetType

from gpu_runtime.contract.crd.conditions import StoragePhase
from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.runtime_api.http.paging import PagedQuery
from gpu_runtime.runtime_api.http.route import Body, Query


class CreateStorage(Body, frozen=True, kw_only=True):
    """A storage to create: persistent data on its own volume.

    The name identifies the storage. A repeated request with the same content returns the existing storage.
    """

    name: str
    """The name of the storage and of its PersistentVolumeClaim."""

    namespace: str = ""
    """The namespace of the storage and of the units that can mount it. Default: the first namespace that the
    configuration allows."""

    size: str
    """The size, for example 20Gi. Later requests can only increase it."""

    storage_class_name: str = ""
    """The StorageClass of the volume. Default: rook-ceph-block."""

    def spec(self) -> GPUStorageSpec:
        return GPUStorageSpec(size=self.size, storage_class_name=self.storage_class_name)


class UpdateStorage(Body, frozen=True, kw_only=True):
    """The new size of a storage."""

    size: str
    """The desired size. It must not be smaller than the current size."""


class StorageQuery(Query, frozen=True, kw_only=True):
    """Selects the namespace of one storage."""

    namespace: str = ""
    """The namespace of the storage. Default: the first namespace that the configuration allows."""


class ListStorages(PagedQuery, frozen=True, kw_only=True):
    """Filters of the storage list."""

    namespace: str = ""
    """Lists only storages of this namespace. Default: storages of every namespace that the configuration allows."""

    phase: StoragePhase | UnsetType = UNSET
    """Lists only storages in this phase."""

    mounted: bool | UnsetType = UNSET
    """true: lists only storages that are attached to a unit. false: lists only other storages."""
