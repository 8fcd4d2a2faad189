"""The HTTP routes of GPU storages: list, create, get, resize and delete."""

from gpu_runtime.contract.errors import (
    AdmissionDenied,
    AlreadyExists,
    BeingDeleted,
    NotFound,
    QuotaExceeded,
    StorageInUse,
    WriteConflict,
)
from gpu_runtime.runtime_api.http.route import (
    SMALL_MAX_BODY_BYTES,
    APIRequest,
    APIResponse,
    NoQuery,
    RouteGroup,
    Scope,
)
from gpu_runtime.runtime_api.storages.requests import CreateStorage, ListStorages, StorageQuery, UpdateStorage
from gpu_runtime.runtime_api.storages.service import StorageService
from gpu_runtime.runtime_api.storages.view import StorageView, storage_view

STORAGES = RouteGroup[StorageService]("GPU storages", Scope.RUNTIME)

STORAGES_PATH = "/api/v1/gpu-storages"
STORAGE_PATH = STORAGES_PATH + "/{name}"

_MODEL_CACHE = {
    "name": "model-cache",
    "namespace": "runtime-instance",
    "size": "20Gi",
    "storageClassName": "rook-ceph-block",
}


@STORAGES.route("GET", STORAGES_PATH, {200: list[StorageView]})
async def list_storages(storages: StorageService, request: APIRequest[None, ListStorages]) -> APIResponse:
    """List storages.

    Lists storages, sorted by namespace and name.
    """
    found, continuation = storages.list(request.query)
    return APIResponse(200, [storage_view(storage) for storage in found], continuation)


@STORAGES.route(
    "POST",
    STORAGES_PATH,
    {201: StorageView, 200: StorageView},
    faults=(AlreadyExists, BeingDeleted, QuotaExceeded, AdmissionDenied, WriteConflict),
    examples={"A model cache": _MODEL_CACHE},
    max_body_bytes=SMALL_MAX_BODY_BYTES,
)
async def create_storage(storages: StorageService, request: APIRequest[CreateStorage, NoQuery]) -> APIResponse:
    """Create a storage.

    201: this request created the storage. The controller creates its volume afterwards, and phase shows when units
    can mount it. 200: an earlier request with the same content created the storage, which the response contains.
    """
    storage, first = await storages.create(request.body)
    return APIResponse(201 if first else 200, storage_view(storage))


@STORAGES.route("GET", STORAGE_PATH, {200: StorageView}, faults=(NotFound,))
async def get_storage(storages: StorageService, request: APIRequest[None, StorageQuery]) -> APIResponse:
    """Get a storage.

    Every replica returns a storage as soon as the create request has been answered.
    """
    return APIResponse(200, storage_view(await storages.get(request.query.namespace, request.path["name"])))


@STORAGES.route(
    "PUT",
    STORAGE_PATH,
    {200: StorageView},
    faults=(NotFound, BeingDeleted, QuotaExceeded, AdmissionDenied, WriteConflict),
    examples={"Twice the size": {"size": "40Gi"}},
    max_body_bytes=SMALL_MAX_BODY_BYTES,
)
async def update_storage(storages: StorageService, request: APIRequest[UpdateStorage, StorageQuery]) -> APIResponse:
    """Resize a storage.

    A storage can grow, even while a unit mounts it, but it cannot shrink. The field capacity shows the actual size
    of the volume.
    """
    resized = await storages.update(request.query.namespace, request.path["name"], request.body)
    return APIResponse(200, storage_view(resized))


@STORAGES.route("DELETE", STORAGE_PATH, {204: None}, faults=(NotFound, StorageInUse, AdmissionDenied, WriteConflict))
async def delete_storage(storages: StorageService, request: APIRequest[None, StorageQuery]) -> APIResponse:
    """Delete a storage and its data.

    Deletes the storage and its data. 409 storage_in_use: the storage is attached to a unit. Until its data is
    deleted, the storage still exists, and its field deleting is true.
    """
    await storages.delete(request.query.namespace, request.path["name"])
    return APIResponse(204)
