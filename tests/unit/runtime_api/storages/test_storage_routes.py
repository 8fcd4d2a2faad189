"""The storage routes are fully documented, their examples are valid, and they call the storage service."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.errors import (
    AdmissionDenied,
    AlreadyExists,
    BeingDeleted,
    Invalid,
    NotFound,
    QuotaExceeded,
    RuntimeFault,
    StorageInUse,
    Unavailable,
    WriteConflict,
)
from gpu_runtime.process.field_docs import field_docs
from gpu_runtime.runtime_api.http.route import APIRequest, NoQuery, Route, Scope
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.storages.requests import CreateStorage, ListStorages, StorageQuery, UpdateStorage
from gpu_runtime.runtime_api.storages.routes import STORAGES
from gpu_runtime.runtime_api.storages.storage_admission import admit_storage, apply_resize
from gpu_runtime.runtime_api.storages.view import StorageView

STORAGE = msgspec.convert({"metadata": {"name": "data", "namespace": "batch"}, "spec": {"size": "20Gi"}}, GPUStorage)


@dataclass
class FakeStorages:
    """A storage service that records its calls."""

    first: bool = True
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def list(self, query: ListStorages) -> tuple[Sequence[GPUStorage], str | None]:
        self.calls.append(("list", query))
        return [STORAGE], "more"

    async def create(self, request: CreateStorage) -> tuple[GPUStorage, bool]:
        self.calls.append(("create", request))
        return STORAGE, self.first

    def __getattr__(self, verb: str) -> Any:
        async def record_call(*arguments: Any) -> GPUStorage:
            self.calls.append((verb, *arguments))
            return STORAGE

        return record_call


def routes_by_name(storages: Any = None) -> dict[str, Route]:
    return {route.name: route for route in STORAGES.bind(storages)}


FAULTS: dict[str, tuple[str, str, set[type[RuntimeFault]]]] = {
    "listStorages": ("GET", "", {Invalid, Unavailable}),
    "createStorage": (
        "POST",
        "",
        {Invalid, AlreadyExists, BeingDeleted, QuotaExceeded, AdmissionDenied, WriteConflict, Unavailable},
    ),
    "getStorage": ("GET", "/{name}", {Invalid, NotFound, Unavailable}),
    "updateStorage": (
        "PUT",
        "/{name}",
        {Invalid, NotFound, BeingDeleted, QuotaExceeded, AdmissionDenied, WriteConflict, Unavailable},
    ),
    "deleteStorage": (
        "DELETE",
        "/{name}",
        {Invalid, NotFound, StorageInUse, AdmissionDenied, WriteConflict, Unavailable},
    ),
}


def test_storage_routes_and_their_faults() -> None:
    prefix = "/api/v1/gpu-storages"
    actual = {name: (route.method, route.path, set(route.faults)) for name, route in routes_by_name().items()}
    assert actual == {name: (method, prefix + path, faults) for name, (method, path, faults) in FAULTS.items()}


@pytest.mark.parametrize("route", routes_by_name().values(), ids=routes_by_name())
def test_storage_route_is_documented_with_runtime_scope(route: Route) -> None:
    assert route.summary
    assert route.description
    assert route.tag
    assert route.scope is Scope.RUNTIME


@pytest.mark.parametrize("model", [StorageView, CreateStorage, UpdateStorage, StorageQuery, ListStorages])
def test_every_storage_field_has_a_description(model: type[msgspec.Struct]) -> None:
    assert set(model.__annotations__) - set(field_docs(model)) == set()


def test_storage_examples_are_valid() -> None:
    for title, example in routes_by_name()["createStorage"].examples.items():
        assert admit_storage(msgspec.convert(example, CreateStorage), APINamespaceSettings()), title
    for title, example in routes_by_name()["updateStorage"].examples.items():
        assert apply_resize(STORAGE.spec, msgspec.convert(example, UpdateStorage)) != STORAGE.spec, title


@pytest.mark.parametrize(("first", "status"), [(True, 201), (False, 200)])
async def test_first_create_returns_201_and_replay_returns_200(first: bool, status: int) -> None:
    storages, body = FakeStorages(first), CreateStorage(name="data", size="20Gi")
    response = await routes_by_name(storages)["createStorage"].handler(APIRequest(body, NoQuery()))
    assert (response.status, response.data.name) == (status, "data")
    assert storages.calls == [("create", body)]


async def test_list_storages_passes_the_continue_token() -> None:
    storages, query = FakeStorages(), ListStorages(mounted=True)
    response = await routes_by_name(storages)["listStorages"].handler(APIRequest(None, query))
    assert (response.status, [each.name for each in response.data], response.continuation) == (200, ["data"], "more")
    assert storages.calls == [("list", query)]


async def test_storage_is_selected_by_path_and_namespace() -> None:
    storages, query, body = FakeStorages(), StorageQuery(namespace="batch"), UpdateStorage(size="40Gi")
    routes = routes_by_name(storages)
    got = await routes["getStorage"].handler(APIRequest(None, query, {"name": "data"}))
    updated = await routes["updateStorage"].handler(APIRequest(body, query, {"name": "data"}))
    deleted = await routes["deleteStorage"].handler(APIRequest(None, query, {"name": "data"}))
    assert [(each.status, each.data and each.data.name) for each in (got, updated, deleted)] == [
        (200, "data"),
        (200, "data"),
        (204, None),
    ]
    assert storages.calls == [("get", "batch", "data"), ("update", "batch", "data", body), ("delete", "batch", "data")]


def test_storage_query_is_decoded_from_the_url() -> None:
    parameters = {"phase": "Ready", "mounted": "false", "limit": "7", "continue": "x", "namespace": "batch"}
    query = msgspec.convert(parameters, ListStorages, strict=False)
    assert (query.phase, query.mounted, query.limit, query.after, query.namespace) == ("Ready", False, 7, "x", "batch")
