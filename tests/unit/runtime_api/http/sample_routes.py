"""The routes of a sample API that manages widgets in a dictionary."""

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
    """A request to create a widget."""

    operation_id: Annotated[str, openapi(minLength=1, maxLength=256)] = field(name="operationID")
    """The ID of the operation, chosen by the caller."""

    name: Annotated[str, openapi(pattern=NAME_PATTERN, maxLength=MAX_NAME_LENGTH)] = ""
    """The name of the widget. Default: derived from the operationID."""

    spec_name: SpecName
    """The flavor."""

    replicas: Count = 1
    """The desired number of replicas."""

    template: Template = Template()
    """The template of the container."""

    access: Access | None = None
    """The access to the widget."""


class UpdateWidget(Body, frozen=True, kw_only=True):
    """A request to update a widget. Fields that are not set do not change."""

    replicas: Count | UnsetType = UNSET
    """The desired number of replicas."""


class WidgetView(View, frozen=True, kw_only=True):
    """A widget."""

    name: str
    """The name of the widget."""

    replicas: int
    """The desired number of replicas."""

    template: Template
    """The template of the container."""

    problem: str | None = None
    """Why the widget is not ready."""


class HealthView(View, frozen=True, kw_only=True):
    """The health of the process."""

    healthy: bool
    """Whether the process is healthy."""


class ListWidgets(Query, frozen=True, kw_only=True):
    """The query of a list of widgets."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    """The maximum number of widgets in the response."""

    after: str | None = field(default=None, name="continue")
    """The `continue` token of the previous page."""


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

    async def health(self, _request: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(200, HealthView(healthy=True))

    async def create(self, request: APIRequest[CreateWidget, NoQuery]) -> APIResponse:
        body = request.body
        existing, view = self.widgets.get(body.operation_id, (None, None))
        if existing == body:
            return APIResponse(200, view)
        if existing or body.name in {view.name for _, view in self.widgets.values()}:
            raise OperationReused("the operationID was used for another request, or the name exists")
        view = WidgetView(
            name=body.name or generated_pool_name(body.operation_id), replicas=body.replicas, template=body.template
        )
        self.widgets[body.operation_id] = (body, view)
        return APIResponse(202, view)

    async def list(self, request: APIRequest[None, ListWidgets]) -> APIResponse:
        views = [view for _, view in self.widgets.values()]
        return APIResponse(200, views[: request.query.limit], "more" if len(views) > request.query.limit else None)

    async def get(self, request: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(200, self.widgets[self._find(request)][1])

    async def update(self, request: APIRequest[UpdateWidget, NoQuery]) -> APIResponse:
        return APIResponse(200, self.widgets[self._find(request)][1])

    async def delete(self, request: APIRequest[None, NoQuery]) -> APIResponse:
        del self.widgets[self._find(request)]
        return APIResponse(204)

    def _find(self, request: APIRequest[Any, Any]) -> str:
        for operation_id, (_, view) in self.widgets.items():
            if view.name == request.path["name"]:
                return operation_id
        raise NotFound(f"widget {request.path['name']} does not exist")


def sample_routes(service: WidgetService) -> Sequence[Route]:
    widgets, widget = "/api/v1/operator/widgets", "/api/v1/operator/widgets/{name}"
    common: dict[str, Any] = {"tag": "Widgets", "scope": Scope.OPERATOR}
    return (
        Route(
            "GET",
            "/api/v1/health",
            "getHealth",
            "Get the health of the API",
            service.health,
            {200: HealthView},
            tag="Health",
        ),
        Route(
            "POST",
            widgets,
            "createWidget",
            "Create a widget",
            service.create,
            {202: WidgetView, 200: WidgetView},
            faults=(OperationReused,),
            body=CreateWidget,
            examples={"A widget": EXAMPLE},
            **common,
        ),
        Route(
            "GET",
            widgets,
            "listWidgets",
            "List widgets",
            service.list,
            {200: list[WidgetView]},
            query=ListWidgets,
            **common,
        ),
        Route("GET", widget, "getWidget", "Get a widget", service.get, {200: WidgetView}, (NotFound,), **common),
        Route(
            "PUT",
            widget,
            "updateWidget",
            "Update a widget",
            service.update,
            {200: WidgetView},
            (NotFound,),
            body=UpdateWidget,
            examples={"Three replicas": UpdateWidget(replicas=3)},
            **common,
        ),
        Route("DELETE", widget, "deleteWidget", "Delete a widget", service.delete, {204: None}, (NotFound,), **common),
    )
