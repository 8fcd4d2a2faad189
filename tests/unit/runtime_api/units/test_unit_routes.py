"""The unit routes are fully documented, their examples are valid, and they call the handoff or the unit service."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from msgspec import structs

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.recorded_requests import RecordedUnitRequest
from gpu_runtime.contract.validation.pod_policy import DEFAULT_POD_POLICY, PodPolicy
from gpu_runtime.process.field_docs import field_docs
from gpu_runtime.runtime_api.http.route import APIRequest, NoQuery, Route, Scope
from gpu_runtime.runtime_api.object_view import ConditionView
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.requests import CreateUnit, ListUnits, UnitQuery, UpdateUnit
from gpu_runtime.runtime_api.units.routes import UNITS
from gpu_runtime.runtime_api.units.unit_admission import admit_unit, apply_update
from gpu_runtime.runtime_api.units.view import SourceStockView, UnitView

UNIT = msgspec.convert(
    {"metadata": {"name": "web", "namespace": "batch"}, "spec": {"specName": "g1.1", "image": "python"}}, GPUUnit
)


@dataclass
class FakeUnits:
    """A unit service and a handoff that record their calls."""

    first: bool = True
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    namespaces: APINamespaceSettings = field(default_factory=APINamespaceSettings)
    pod_policy: PodPolicy = DEFAULT_POD_POLICY

    @property
    def handoff(self) -> "FakeUnits":
        return self

    def list(self, query: ListUnits) -> tuple[Sequence[GPUUnit], str | None]:
        self.calls.append(("list", query))
        return [UNIT], "more"

    async def create(self, request: RecordedUnitRequest, caller: str) -> tuple[GPUUnit, bool]:
        assert caller == "anonymous"
        self.calls.append(("create", request))
        return UNIT, self.first

    def __getattr__(self, verb: str) -> Any:
        async def record_call(*arguments: Any) -> GPUUnit:
            self.calls.append((verb, *arguments))
            return UNIT

        return record_call


def routes_by_name(units: Any = None) -> dict[str, Route]:
    return {route.name: route for route in UNITS.bind(units)}


def test_unit_routes_exist() -> None:
    assert {(route.method, route.path) for route in routes_by_name().values()} == {
        ("GET", "/api/v1/gpu-units"),
        ("POST", "/api/v1/gpu-units"),
        ("GET", "/api/v1/gpu-units/{name}"),
        ("PUT", "/api/v1/gpu-units/{name}"),
        ("DELETE", "/api/v1/gpu-units/{name}"),
        ("POST", "/api/v1/gpu-units/{name}/stop"),
        ("POST", "/api/v1/gpu-units/{name}/start"),
        ("POST", "/api/v1/gpu-units/{name}/extend"),
    }


@pytest.mark.parametrize("route", routes_by_name().values(), ids=routes_by_name())
def test_unit_route_is_documented_with_runtime_scope(route: Route) -> None:
    assert route.summary
    assert route.description
    assert route.tag
    assert route.scope is Scope.RUNTIME
    assert Invalid in route.faults


@pytest.mark.parametrize(
    "model", [UnitView, ConditionView, SourceStockView, CreateUnit, UpdateUnit, UnitQuery, ListUnits]
)
def test_every_unit_field_has_a_description(model: type[msgspec.Struct]) -> None:
    declared = model.__annotations__
    assert set(declared) - set(field_docs(model)) == set()


def test_create_examples_are_valid() -> None:
    examples = routes_by_name()["createUnit"].examples
    for title, example in examples.items():
        assert admit_unit(msgspec.convert(example, CreateUnit), APINamespaceSettings()), title


def test_update_examples_are_valid() -> None:
    for title, example in routes_by_name()["updateUnit"].examples.items():
        assert apply_update(UNIT, msgspec.convert(example, UpdateUnit)) != UNIT.spec, title


async def test_first_create_returns_201_and_replay_returns_200() -> None:
    body = msgspec.convert(routes_by_name()["createUnit"].examples["A web server"], CreateUnit)
    for first, status in ((True, 201), (False, 200)):
        units = FakeUnits(first)
        response = await routes_by_name(units)["createUnit"].handler(APIRequest(body, NoQuery()))
        assert (response.status, response.data.name) == (status, "web")
        assert units.calls == [("create", admit_unit(body, APINamespaceSettings()))]


async def test_create_is_validated_and_normalized_before_the_handoff() -> None:
    units = FakeUnits()
    create = routes_by_name(units)["createUnit"].handler
    request = CreateUnit(operation_id="unit-1", name="web", spec_name="g1.1", image=" python ")
    with pytest.raises(Invalid, match="name: is required"):
        await create(APIRequest(structs.replace(request, name=""), NoQuery()))
    assert units.calls == []
    await create(APIRequest(request, NoQuery()))
    normalized = RecordedUnitRequest(
        operation_id="unit-1",
        name="web",
        spec_name="g1.1",
        image="python",
        namespace="runtime-instance",
        stock_namespace="runtime-stock",
    )
    assert units.calls == [("create", normalized)]


async def test_list_units_passes_the_continue_token() -> None:
    units = FakeUnits()
    query = ListUnits(spec_name="g1.1")
    response = await routes_by_name(units)["listUnits"].handler(APIRequest(None, query))
    assert (response.status, [unit.name for unit in response.data], response.continuation) == (200, ["web"], "more")
    assert units.calls == [("list", query)]


@pytest.mark.parametrize("verb", ["get", "stop", "start"])
async def test_unit_is_selected_by_path_and_namespace(verb: str) -> None:
    units = FakeUnits()
    response = await routes_by_name(units)[f"{verb}Unit"].handler(
        APIRequest(None, UnitQuery(namespace="batch"), {"name": "web"})
    )
    assert (response.status, response.data.name) == (200, "web")
    assert units.calls == [(verb, "batch", "web")]


async def test_update_passes_the_body_to_the_service() -> None:
    units, body = FakeUnits(), UpdateUnit(image="new")
    response = await routes_by_name(units)["updateUnit"].handler(APIRequest(body, UnitQuery(), {"name": "web"}))
    assert (response.status, response.data.name) == (200, "web")
    assert units.calls == [("update", "", "web", body)]


async def test_delete_returns_204_without_data() -> None:
    units = FakeUnits()
    response = await routes_by_name(units)["deleteUnit"].handler(APIRequest(None, UnitQuery(), {"name": "web"}))
    assert (response.status, response.data) == (204, None)
    assert units.calls == [("delete", "", "web")]


def test_unit_query_is_decoded_from_the_url() -> None:
    parameters = {"phase": "Ready", "serverless": "true", "limit": "7", "continue": "x", "specName": "g1.1"}
    query = msgspec.convert(parameters, ListUnits, strict=False)
    assert (query.phase, query.serverless, query.limit, query.after, query.spec_name) == ("Ready", True, 7, "x", "g1.1")
