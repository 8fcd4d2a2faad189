"""The one place that knows every route, for the API's document: no cluster is needed, and no handler is called."""

from collections.abc import Callable, Sequence
from typing import Any

from gpu_runtime.runtime_api.http.route import Route

PARTS: tuple[Callable[[Any], Sequence[Route]], ...] = ()
"""What gives the routes of each part of the API."""


class _Nothing:
    """Stands for any service and whatever that is made from: it can be asked for anything, and does nothing."""

    def __getattr__(self, name: str) -> "_Nothing":
        return self

    def __call__(self, *_given: object, **_named: object) -> "_Nothing":
        return self


def documented_routes() -> list[Route]:
    return [route for part in PARTS for route in part(_Nothing())]
