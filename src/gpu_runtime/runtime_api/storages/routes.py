"""The routes of storages."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, StorageInUse, Unavailable
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
    """From calls to the service, and from storages to views."""

    def __init__(self, service: StorageService) -> None:
        self._storages = service

    async def list(self, call: APIRequest[None, ListStorages]) -> APIResponse:
        found, continuation = self._storages.list(call.query)
        return APIResponse(200, [storage_view(each) for each in found], continuation)

    async def create(self, call: APIRequest[CreateStorage, Any]) -> APIResponse:
        storage, first = await self._storages.create(call.body)
        return APIResponse(201 if first else 200, storage_view(storage))

    async def get(self, call: APIRequest[None, StorageQuery]) -> APIResponse:
        return APIResponse(200, storage_view(await self._storages.get(call.query.namespace, call.path["name"])))

    async def update(self, call: APIRequest[UpdateStorage, StorageQuery]) -> APIResponse:
        return APIResponse(
            200, storage_view(await self._storages.update(call.query.namespace, call.path["name"], call.body))
        )

    async def delete(self, call: APIRequest[None, StorageQuery]) -> APIResponse:
        await self._storages.delete(call.query.namespace, call.path["name"])
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
        description="Storages in the order of namespace and name.",
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
        faults=(Invalid, Conflict, Unavailable),
        scope=Scope.RUNTIME,
        body=CreateStorage,
        description=(
            "201: it was made; its volume follows, and phase tells when it can be mounted. 200: the same request was"
            " made before, and this is its storage."
        ),
        examples={"A cache for models": _MODEL_CACHE},
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
        description="A storage can be read on every replica as soon as its creation was answered.",
        tag=TAG,
    )


def _update(handle: _StorageHandlers) -> Route:
    return Route(
        "PUT",
        STORAGE_PATH,
        "updateStorage",
        "Grow a storage",
        handle.update,
        responses={200: StorageView},
        faults=(Invalid, NotFound, Conflict, Unavailable),
        scope=Scope.RUNTIME,
        body=UpdateStorage,
        query=StorageQuery,
        description="A storage only grows, also while a unit has it mounted. capacity tells when it has grown.",
        examples={"Twice as much": {"size": "40Gi"}},
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
        faults=(Invalid, NotFound, StorageInUse, Conflict, Unavailable),
        scope=Scope.RUNTIME,
        query=StorageQuery,
        description=(
            "Refused while a unit holds it. The data is gone when the storage is: until then it can still be read,"
            " with deleting: true."
        ),
        tag=TAG,
    )


_MODEL_CACHE = {
    "name": "model-cache",
    "namespace": "runtime-instance",
    "size": "20Gi",
    "storageClassName": "rook-ceph-block",
}
