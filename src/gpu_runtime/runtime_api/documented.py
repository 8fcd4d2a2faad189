"""The one place that knows every route, for the API's document: no cluster is needed, and no handler is called."""

from collections.abc import Callable, Sequence
from typing import Any

from gpu_runtime.runtime_api.http.route import Answer, Call, Route

PARTS: tuple[Callable[[Any], Sequence[Route]], ...] = ()
"""What gives the routes of each part of the API."""


class _Unserved:
    """Stands for any service: it has every method, and none of them may be called."""

    def __getattr__(self, name: str) -> Callable[[Call[Any, Any]], Any]:
        async def handler(_call: Call[Any, Any]) -> Answer:
            raise NotImplementedError(f"{name} is only documented here, not served")

        return handler


def documented_routes() -> list[Route]:
    return [route for part in PARTS for route in part(_Unserved())]
