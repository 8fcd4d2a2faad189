"""The one place that knows every route, for the API's document: no cluster is needed, and no handler is called."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.runtime_api.http.route import Route
from gpu_runtime.runtime_api.main import routes


class _StubService:
    """Stands for any service and whatever that is made from: it can be asked for anything, and does nothing."""

    def __getattr__(self, name: str) -> "_StubService":
        return self

    def __call__(self, *_given: object, **_named: object) -> "_StubService":
        return self


def documented_routes() -> Sequence[Route]:
    nothing: Any = _StubService()
    return routes(nothing)
