"""The routes of storages."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, StorageInUse, Unavailable
from gpu_runtime.runtime_api.http.route import Answer, Call, Route, Scope
from gpu_runtime.runtime_api.storages.requests import CreateStorage, ListStorages, StorageQuery, UpdateStorage
from gpu_runtime.runtime_api.storages.service import Storages
from gpu_runtime.runtime_api.storages.view import StorageView, view

STORAGES = "/api/v1/gpu-storages"
STORAGE = STORAGES + "/{name}"
TAG = "GPU storages"


def routes(service: Storages) -> Sequence[Route]:
    handle = _Handlers(service)
    return (_list(handle), _create(handle), _get(handle), _update(handle), _delete(handle))


class _Handlers:
    """From calls to the service, and from storages to views."""

    def __init__(self, service: Storages) -> None:
        self._storages = service

    async def list(self, call: Call[None, ListStorages]) -> Answer:
        found, continuation = self._storages.list(call.query)
        return Answer(200, [view(each) for each in found], continuation)

    async def create(self, call: Call[CreateStorage, Any]) -> Answer:
        storage, first = await self._storages.create(call.body)
        return Answer(201 if first else 200, view(storage))

    async def get(self, call: Call[None, StorageQuery]) -> Answer:
        return Answer(200, view(await self._storages.get(call.query.namespace, call.path["name"])))

    async def update(self, call: Call[UpdateStorage, StorageQuery]) -> Answer:
        return Answer(200, view(await self._storages.update(call.query.namespace, call.path["name"], call.body)))

    async def delete(self, call: Call[None, StorageQuery]) -> Answer:
        await self._storages.delete(call.query.namespace, call.path["name"])
        return Answer(204)


def _list(handle: _Handlers) -> Route:
    return Route(
        "GET",
        STORAGES,
        "listStorages",
        "List storages",
        handle.list,
        answers={200: list[StorageView]},
        faults=(Invalid, Unavailable),
        scope=Scope.RUNTIME,
        query=ListStorages,
        description="Storages in the order of namespace and name.",
        tag=TAG,
    )


def _create(handle: _Handlers) -> Route:
    return Route(
        "POST",
        STORAGES,
        "createStorage",
        "Create a storage",
        handle.create,
        answers={201: StorageView, 200: StorageView},
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


def _get(handle: _Handlers) -> Route:
    return Route(
        "GET",
        STORAGE,
        "getStorage",
        "Get a storage",
        handle.get,
        answers={200: StorageView},
        faults=(Invalid, NotFound, Unavailable),
        scope=Scope.RUNTIME,
        query=StorageQuery,
        description="A storage can be read on every replica as soon as its creation was answered.",
        tag=TAG,
    )


def _update(handle: _Handlers) -> Route:
    return Route(
        "PUT",
        STORAGE,
        "updateStorage",
        "Grow a storage",
        handle.update,
        answers={200: StorageView},
        faults=(Invalid, NotFound, Conflict, Unavailable),
        scope=Scope.RUNTIME,
        body=UpdateStorage,
        query=StorageQuery,
        description="A storage only grows, also while a unit has it mounted. capacity tells when it has grown.",
        examples={"Twice as much": {"size": "40Gi"}},
        tag=TAG,
    )


def _delete(handle: _Handlers) -> Route:
    return Route(
        "DELETE",
        STORAGE,
        "deleteStorage",
        "Delete a storage and its data",
        handle.delete,
        answers={204: None},
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
