"""The routes of storages say all that the document of the API needs, and their examples work."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, RuntimeFault, StorageInUse, Unavailable
from gpu_runtime.process.field_docs import field_docs
from gpu_runtime.runtime_api.http.route import APIRequest, NoQuery, Route, Scope
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.storages.requests import CreateStorage, ListStorages, StorageQuery, UpdateStorage
from gpu_runtime.runtime_api.storages.routes import routes
from gpu_runtime.runtime_api.storages.storage_admission import admit_storage, apply_resize
from gpu_runtime.runtime_api.storages.view import StorageView

STORAGE = msgspec.convert({"metadata": {"name": "data", "namespace": "batch"}, "spec": {"size": "20Gi"}}, GPUStorage)


@dataclass
class FakeStorages:
    """Takes note of what it is asked."""

    first: bool = True
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def list(self, query: ListStorages) -> tuple[Sequence[GPUStorage], str | None]:
        self.asked.append(("list", query))
        return [STORAGE], "more"

    async def create(self, request: CreateStorage) -> tuple[GPUStorage, bool]:
        self.asked.append(("create", request))
        return STORAGE, self.first

    def __getattr__(self, verb: str) -> Any:
        async def take_note(*arguments: Any) -> GPUStorage:
            self.asked.append((verb, *arguments))
            return STORAGE

        return take_note


def by_name(storages: Any = None) -> dict[str, Route]:
    return {route.name: route for route in routes(storages)}


FAULTS: dict[str, tuple[str, str, set[type[RuntimeFault]]]] = {
    "listStorages": ("GET", "", {Invalid, Unavailable}),
    "createStorage": ("POST", "", {Invalid, Conflict, Unavailable}),
    "getStorage": ("GET", "/{name}", {Invalid, NotFound, Unavailable}),
    "updateStorage": ("PUT", "/{name}", {Invalid, NotFound, Conflict, Unavailable}),
    "deleteStorage": ("DELETE", "/{name}", {Invalid, NotFound, StorageInUse, Conflict, Unavailable}),
}


def test_storage_routes_and_their_statuses() -> None:
    prefix = "/api/v1/gpu-storages"
    found = {name: (route.method, route.path, set(route.faults)) for name, route in by_name().items()}
    assert found == {name: (method, prefix + path, faults) for name, (method, path, faults) in FAULTS.items()}


@pytest.mark.parametrize("route", by_name().values(), ids=by_name())
def test_storage_route_is_documented_with_runtime_scope(route: Route) -> None:
    assert route.summary
    assert route.description
    assert route.tag
    assert route.scope is Scope.RUNTIME


@pytest.mark.parametrize("model", [StorageView, CreateStorage, UpdateStorage, StorageQuery, ListStorages])
def test_every_storage_field_has_a_description(model: type[msgspec.Struct]) -> None:
    assert set(model.__annotations__) - set(field_docs(model)) == set()


def test_the_examples_are_accepted() -> None:
    for title, example in by_name()["createStorage"].examples.items():
        assert admit_storage(msgspec.convert(example, CreateStorage), APINamespaceSettings()), title
    for title, example in by_name()["updateStorage"].examples.items():
        assert apply_resize(STORAGE.spec, msgspec.convert(example, UpdateStorage)) != STORAGE.spec, title


@pytest.mark.parametrize(("first", "status"), [(True, 201), (False, 200)])
async def test_the_first_create_is_201_and_its_replay_200(first: bool, status: int) -> None:
    storages, body = FakeStorages(first), CreateStorage(name="data", size="20Gi")
    answer = await by_name(storages)["createStorage"].handler(APIRequest(body, NoQuery()))
    assert (answer.status, answer.data.name) == (status, "data")
    assert storages.asked == [("create", body)]


async def test_list_storages_passes_the_continue_token() -> None:
    storages, query = FakeStorages(), ListStorages(mounted=True)
    answer = await by_name(storages)["listStorages"].handler(APIRequest(None, query))
    assert (answer.status, [each.name for each in answer.data], answer.continuation) == (200, ["data"], "more")
    assert storages.asked == [("list", query)]


async def test_storage_is_selected_by_path_and_namespace() -> None:
    storages, where, body = FakeStorages(), StorageQuery(namespace="batch"), UpdateStorage(size="40Gi")
    known = by_name(storages)
    read = await known["getStorage"].handler(APIRequest(None, where, {"name": "data"}))
    written = await known["updateStorage"].handler(APIRequest(body, where, {"name": "data"}))
    ended = await known["deleteStorage"].handler(APIRequest(None, where, {"name": "data"}))
    assert [(each.status, each.data and each.data.name) for each in (read, written, ended)] == [
        (200, "data"),
        (200, "data"),
        (204, None),
    ]
    assert storages.asked == [("get", "batch", "data"), ("update", "batch", "data", body), ("delete", "batch", "data")]


def test_storage_query_is_decoded_from_the_url() -> None:
    written = {"phase": "Ready", "mounted": "false", "limit": "7", "continue": "x", "namespace": "batch"}
    read = msgspec.convert(written, ListStorages, strict=False)
    assert (read.phase, read.mounted, read.limit, read.after, read.namespace) == ("Ready", False, 7, "x", "batch")
