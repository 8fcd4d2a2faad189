"""A small API as other parts of the product write theirs: pools, whose records live in a dictionary."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field

from gpu_runtime.contract.crd.gpu_unit import Access
from gpu_runtime.contract.crd.markers import openapi
from gpu_runtime.contract.crd.template import Count, EnvVar, Port, SpecName, Template
from gpu_runtime.contract.crd.well_known import MAX_NAME_LENGTH, NAME_PATTERN, generated_pool_name
from gpu_runtime.contract.errors import NotFound, OperationReused
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Body, NoQuery, Query, Route, Scope, View


class CreateWidget(Body, frozen=True, kw_only=True):
    """A shelf of warm capacity."""

    operation_id: Annotated[str, openapi(minLength=1, maxLength=256)] = field(name="operationID")
    """The caller's name for this operation."""

    name: Annotated[str, openapi(pattern=NAME_PATTERN, maxLength=MAX_NAME_LENGTH)] = ""
    """The shelf's name. Default: one derived from the operationID."""

    spec_name: SpecName
    """The flavor."""

    replicas: Count = 1
    """How many there are to be."""

    template: Template = Template()
    """How the image is run."""

    access: Access | None = None
    """How it is reached."""


class UpdateWidget(Body, frozen=True, kw_only=True):
    """What is to change. What is not named stays."""

    replicas: Count | UnsetType = UNSET
    """How many there are to be."""


class WidgetView(View, frozen=True, kw_only=True):
    """A shelf."""

    name: str
    """The shelf's name."""

    replicas: int
    """How many there are to be."""

    template: Template
    """How the image is run."""

    trouble: str | None = None
    """What is wrong with it."""


class HealthView(View, frozen=True, kw_only=True):
    """How the process is."""

    healthy: bool
    """Whether all is well."""


class ListWidgets(Query, frozen=True, kw_only=True):
    """Which shelves."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    """How many to answer with at most."""

    after: str | None = field(default=None, name="continue")
    """The `continue` of the page before."""


EXAMPLE = CreateWidget(
    operation_id="op-1",
    name="warm",
    spec_name="g1.1",
    template=Template(envs=(EnvVar(name="MODE", value="x"),), ports=(Port(name="http", port=8080),)),
    access=Access(primary_port="http"),
)


class WidgetService:
    def __init__(self) -> None:
        self.widgets: dict[str, tuple[CreateWidget, WidgetView]] = {}

    async def health(self, _call: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(200, HealthView(healthy=True))

    async def create(self, call: APIRequest[CreateWidget, NoQuery]) -> APIResponse:
        asked = call.body
        known, view = self.widgets.get(asked.operation_id, (None, None))
        if known == asked:
            return APIResponse(200, view)
        if known or asked.name in {view.name for _, view in self.widgets.values()}:
            raise OperationReused("operationID already stands for another request, or the name for another shelf")
        view = WidgetView(
            name=asked.name or generated_pool_name(asked.operation_id), replicas=asked.replicas, template=asked.template
        )
        self.widgets[asked.operation_id] = (asked, view)
        return APIResponse(202, view)

    async def list(self, call: APIRequest[None, ListWidgets]) -> APIResponse:
        views = [view for _, view in self.widgets.values()]
        return APIResponse(200, views[: call.query.limit], "more" if len(views) > call.query.limit else None)

    async def get(self, call: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(200, self.widgets[self._find(call)][1])

    async def update(self, call: APIRequest[UpdateWidget, NoQuery]) -> APIResponse:
        return APIResponse(200, self.widgets[self._find(call)][1])

    async def delete(self, call: APIRequest[None, NoQuery]) -> APIResponse:
        del self.widgets[self._find(call)]
        return APIResponse(204)

    def _find(self, call: APIRequest[Any, Any]) -> str:
        for operation_id, (_, view) in self.widgets.items():
            if view.name == call.path["name"]:
                return operation_id
        raise NotFound(f"there is no shelf {call.path['name']}")


def sample_routes(service: WidgetService) -> Sequence[Route]:
    shelves, shelf = "/api/v1/operator/shelves", "/api/v1/operator/shelves/{name}"
    about: dict[str, Any] = {"tag": "Shelves", "scope": Scope.OPERATOR}
    return (
        Route("GET", "/api/v1/health", "getHealth", "How the API is", service.health, {200: HealthView}, tag="Health"),
        Route(
            "POST",
            shelves,
            "createShelf",
            "Make a shelf",
            service.create,
            {202: WidgetView, 200: WidgetView},
            faults=(OperationReused,),
            body=CreateWidget,
            examples={"A warm shelf": EXAMPLE},
            **about,
        ),
        Route(
            "GET",
            shelves,
            "listShelves",
            "List shelves",
            service.list,
            {200: list[WidgetView]},
            query=ListWidgets,
            **about,
        ),
        Route("GET", shelf, "getShelf", "Show a shelf", service.get, {200: WidgetView}, (NotFound,), **about),
        Route(
            "PUT",
            shelf,
            "changeShelf",
            "Change a shelf",
            service.update,
            {200: WidgetView},
            (NotFound,),
            body=UpdateWidget,
            examples={"More of it": UpdateWidget(replicas=3)},
            **about,
        ),
        Route("DELETE", shelf, "deleteShelf", "Delete a shelf", service.delete, {204: None}, (NotFound,), **about),
    )
