"""A small API as other parts of the product write theirs: pools, whose records live in a dictionary."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field

from gpu_runtime.contract.crd.gpu_unit import Access
from gpu_runtime.contract.crd.markers import held
from gpu_runtime.contract.crd.template import Count, EnvVar, Port, SpecName, Template
from gpu_runtime.contract.crd.well_known import NAME_LIMIT, NAME_PATTERN, generated_pool_name
from gpu_runtime.contract.errors import NotFound, OperationReused
from gpu_runtime.runtime_api.http.route import Answer, Body, Call, NoQuery, Query, Route, Scope, View


class CreateShelf(Body, frozen=True, kw_only=True):
    """A shelf of warm capacity."""

    operation_id: Annotated[str, held(minLength=1, maxLength=256)] = field(name="operationID")
    """The caller's name for this operation."""

    name: Annotated[str, held(pattern=NAME_PATTERN, maxLength=NAME_LIMIT)] = ""
    """The shelf's name. Default: one derived from the operationID."""

    spec_name: SpecName
    """The flavour."""

    replicas: Count = 1
    """How many there are to be."""

    template: Template = Template()
    """How the image is run."""

    access: Access | None = None
    """How it is reached."""


class ChangeShelf(Body, frozen=True, kw_only=True):
    """What is to change. What is not named stays."""

    replicas: Count | UnsetType = UNSET
    """How many there are to be."""


class ShelfView(View, frozen=True, kw_only=True):
    """A shelf."""

    name: str
    """The shelf's name."""

    replicas: int
    """How many there are to be."""

    template: Template
    """How the image is run."""

    trouble: str | None = None
    """What is wrong with it."""


class Health(View, frozen=True, kw_only=True):
    """How the process is."""

    well: bool
    """Whether all is well."""


class Shelves(Query, frozen=True, kw_only=True):
    """Which shelves."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    """How many to answer with at most."""

    after: str | None = field(default=None, name="continue")
    """The `continue` of the page before."""


EXAMPLE = CreateShelf(
    operation_id="op-1",
    name="warm",
    spec_name="g1.1",
    template=Template(envs=(EnvVar(name="MODE", value="x"),), ports=(Port(name="http", port=8080),)),
    access=Access(primary_port="http"),
)


class ShelfService:
    def __init__(self) -> None:
        self.made: dict[str, tuple[CreateShelf, ShelfView]] = {}

    async def health(self, _call: Call[None, NoQuery]) -> Answer:
        return Answer(200, Health(well=True))

    async def create(self, call: Call[CreateShelf, NoQuery]) -> Answer:
        asked = call.body
        known, view = self.made.get(asked.operation_id, (None, None))
        if known == asked:
            return Answer(200, view)
        if known or asked.name in {view.name for _, view in self.made.values()}:
            raise OperationReused("operationID already stands for another request, or the name for another shelf")
        view = ShelfView(
            name=asked.name or generated_pool_name(asked.operation_id), replicas=asked.replicas, template=asked.template
        )
        self.made[asked.operation_id] = (asked, view)
        return Answer(202, view)

    async def list(self, call: Call[None, Shelves]) -> Answer:
        views = [view for _, view in self.made.values()]
        return Answer(200, views[: call.query.limit], "more" if len(views) > call.query.limit else None)

    async def get(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(200, self.made[self._found(call)][1])

    async def change(self, call: Call[ChangeShelf, NoQuery]) -> Answer:
        return Answer(200, self.made[self._found(call)][1])

    async def delete(self, call: Call[None, NoQuery]) -> Answer:
        del self.made[self._found(call)]
        return Answer(204)

    def _found(self, call: Call[Any, Any]) -> str:
        for operation_id, (_, view) in self.made.items():
            if view.name == call.path["name"]:
                return operation_id
        raise NotFound(f"there is no shelf {call.path['name']}")


def sample_routes(service: ShelfService) -> Sequence[Route]:
    shelves, shelf = "/api/v1/operator/shelves", "/api/v1/operator/shelves/{name}"
    about: dict[str, Any] = {"tag": "Shelves", "scope": Scope.OPERATOR}
    return (
        Route("GET", "/api/v1/health", "getHealth", "How the API is", service.health, {200: Health}, tag="Health"),
        Route(
            "POST",
            shelves,
            "createShelf",
            "Make a shelf",
            service.create,
            {202: ShelfView, 200: ShelfView},
            faults=(OperationReused,),
            body=CreateShelf,
            examples={"A warm shelf": EXAMPLE},
            **about,
        ),
        Route(
            "GET", shelves, "listShelves", "List shelves", service.list, {200: list[ShelfView]}, query=Shelves, **about
        ),
        Route("GET", shelf, "getShelf", "Show a shelf", service.get, {200: ShelfView}, (NotFound,), **about),
        Route(
            "PUT",
            shelf,
            "changeShelf",
            "Change a shelf",
            service.change,
            {200: ShelfView},
            (NotFound,),
            body=ChangeShelf,
            examples={"More of it": ChangeShelf(replicas=3)},
            **about,
        ),
        Route("DELETE", shelf, "deleteShelf", "Delete a shelf", service.delete, {204: None}, (NotFound,), **about),
    )
