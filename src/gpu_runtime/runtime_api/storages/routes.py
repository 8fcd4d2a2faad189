"""The HTTP routes of GPU storages: list, create, get, resize and delete."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.contract.errors import (
    AdmissionDenied,
    AlreadyExists,
    BeingDeleted,
    Invalid,
    NotFound,
    QuotaExceeded,
    StorageInUse,
    Unavailable,
    WriteConflict,
)
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Route, Scope
from gpu_runtime.runtime_api.storages.requests import CreateStorage, ListStorages, StorageQuery, UpdateStorage
from gpu_runtime.runtime_api.storages.service import StorageService
from gpu_runtime.runtime_api.storages.view import StorageView, storage_view

STORAGES_PATH = "/api/v1/gpu-storages"
STORAGE_PATH = STORAGES_PATH + "/{name}"
TAG = "GPU storages"


def routes(service: StorageService) -> Sequence[Route]:
    handle = _StorageHandlers(service)
    return (_list(handle), _create(handle), _get(handle), _update(handle), _delete(handle))


class _StorageHandlers:
    """Calls the storage service and converts storages to views."""

    def __init__(self, service: StorageService) -> None:
        self._storages = service

    async def list(self, request: APIRequest[None, ListStorages]) -> APIResponse:
        storages, continuation = self._storages.list(request.query)
        return APIResponse(200, [storage_view(storage) for storage in storages], continuation)

    async def create(self, request: APIRequest[CreateStorage, Any]) -> APIResponse:
        storage, first = await self._storages.create(request.body)
        return APIResponse(201 if first else 200, storage_view(storage))

    async def get(self, request: APIRequest[None, StorageQuery]) -> APIResponse:
        return APIResponse(200, storage_view(await self._storages.get(request.query.namespace, request.path["name"])))

    async def update(self, request: APIRequest[UpdateStorage, StorageQuery]) -> APIResponse:
        return APIResponse(
            200, storage_view(await self._storages.update(request.query.namespace, request.path["name"], request.body))
        )

    async def delete(self, request: APIRequest[None, StorageQuery]) -> APIResponse:
        await self._storages.delete(request.query.namespace, request.path["name"])
        return APIResponse(204)


def _list(handle: _StorageHandlers) -> Route:
    return Route(
        "GET",
        STORAGES_PATH,
        "listStorages",
        "List storages",
        handle.list,
        responses={200: list[StorageView]},
        faults=(Invalid, Unavailable),
        scope=Scope.RUNTIME,
        query=ListStorages,
        description="Lists storages, sorted by namespace and name.",
        tag=TAG,
    )


def _create(handle: _StorageHandlers) -> Route:
    return Route(
        "POST",
        STORAGES_PATH,
        "createStorage",
        "Create a storage",
        handle.create,
        responses={201: StorageView, 200: StorageView},
        faults=(Invalid, AlreadyExists, BeingDeleted, QuotaExceeded, AdmissionDenied, WriteConflict, Unavailable),
        scope=Scope.RUNTIME,
        body=CreateStorage,
        description=(
            "201: this request created the storage. The controller creates its volume afterwards, and phase shows when"
            " units can mount it. 200: an earlier request with the same content created the storage, which the response"
            " contains."
        ),
        examples={"A model cache": _MODEL_CACHE},
        tag=TAG,
    )


def _get(handle: _StorageHandlers) -> Route:
    return Route(
        "GET",
        STORAGE_PATH,
        "getStorage",
        "Get a storage",
        handle.get,
        responses={200: StorageView},
        faults=(Invalid, NotFound, Unavailable),
        scope=Scope.RUNTIME,
        query=StorageQuery,
        description="Every replica returns a storage as soon as the create request has been answered.",
        tag=TAG,
    )


def _update(handle: _StorageHandlers) -> Route:
    return Route(
        "PUT",
        STORAGE_PATH,
        "updateStorage",
        "Resize a storage",
        handle.update,
        responses={200: StorageView},
        faults=(Invalid, NotFound, BeingDeleted, QuotaExceeded, AdmissionDenied, WriteConflict, Unavailable),
        scope=Scope.RUNTIME,
        body=UpdateStorage,
        query=StorageQuery,
        description="A storage can grow, even while a unit mounts it, but it cannot shrink. The field capacity shows"
        " the actual size of the volume.",
        examples={"Twice the size": {"size": "40Gi"}},
        tag=TAG,
    )


def _delete(handle: _StorageHandlers) -> Route:
    return Route(
        "DELETE",
        STORAGE_PATH,
        "deleteStorage",
        "Delete a storage and its data",
        handle.delete,
        responses={204: None},
        faults=(Invalid, NotFound, StorageInUse, AdmissionDenied, WriteConflict, Unavailable),
        scope=Scope.RUNTIME,
        query=StorageQuery,
        description=(
            "Deletes the storage and its data. 409 storage_in_use: the storage is attached to a unit. Until its"
            " data is deleted, the storage still exists, and its field deleting is true."
        ),
        tag=TAG,
    )


_MODEL_CACHE = {
    "name": "model-cache",
    "namespace": "runtime-instance",
    "size": "20Gi",
    "storageClassName": "rook-ceph-block",
}
