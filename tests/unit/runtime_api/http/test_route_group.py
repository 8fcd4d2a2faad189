"""A route of a group takes its name, types and texts from its handler."""

from gpu_runtime.contract.errors import Invalid, NotFound, Unavailable
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Body, NoQuery, Query, RouteGroup, Scope


class RenameBook(Body, frozen=True, kw_only=True):
    title: str


class BookQuery(Query, frozen=True, kw_only=True):
    namespace: str = ""


BOOKS = RouteGroup[dict[str, str]]("Books", Scope.RUNTIME, needs_cluster=False)


@BOOKS.route("PUT", "/books/{name}", {200: str}, faults=(NotFound,), examples={"A title": {"title": "Ulysses"}})
async def rename_old_book(books: dict[str, str], request: APIRequest[RenameBook, BookQuery]) -> APIResponse:
    """Rename a book.

    A book keeps
    its name.
    """
    books[request.path["name"]] = request.body.title
    return APIResponse(200, request.body.title)


@BOOKS.route("DELETE", "/books", {204: None})
async def delete_books(books: dict[str, str], request: APIRequest[None, NoQuery]) -> APIResponse:
    """Delete all books."""
    books.clear()
    return APIResponse(204)


def test_route_is_derived_from_its_handler() -> None:
    rename, delete = BOOKS.routes
    assert (rename.name, rename.summary, rename.description) == (
        "renameOldBook",
        "Rename a book",
        "A book keeps its name.",
    )
    assert (rename.body, rename.query) == (RenameBook, BookQuery)
    assert (rename.tag, rename.scope, rename.needs_cluster) == ("Books", Scope.RUNTIME, False)
    assert rename.faults == (Invalid, Unavailable, NotFound)
    assert rename.examples == {"A title": {"title": "Ulysses"}}
    assert (delete.name, delete.summary, delete.description) == ("deleteBooks", "Delete all books", "")
    assert (delete.body, delete.query, delete.examples) == (None, NoQuery, {})


async def test_bound_handler_calls_its_own_service() -> None:
    first, second = {"a": "A"}, {"b": "B"}
    rename, _ = BOOKS.bind(first)
    _, delete = BOOKS.bind(second)
    response = await rename.handler(APIRequest(RenameBook(title="Ulysses"), BookQuery(), {"name": "a"}))
    await delete.handler(APIRequest(None, NoQuery()))
    assert (response.data, first, second) == ("Ulysses", {"a": "Ulysses"}, {})
