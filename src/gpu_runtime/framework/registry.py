"""The one handler of this process."""

from collections.abc import Callable
from typing import Any, TypeVar

from gpu_runtime.framework.errors import CannotServe
from gpu_runtime.framework.request import Request

HandlerFunction = Callable[[Request], Any]
F = TypeVar("F", bound=Callable[..., Any])

_handlers: list[HandlerFunction] = []


def handler(function: F) -> F:
    """Make this function, plain or async, the handler of the process. The function itself stays as it is."""
    if not callable(function):
        raise TypeError(f"@handler takes no arguments: write it alone above a function, not with {function!r}")
    if _handlers:
        raise RuntimeError(
            f"there is a handler already, {_qualified_name(_handlers[0])}; {_qualified_name(function)} needs a process of its own"
        )
    _handlers.append(function)
    return function


def registered_handler() -> HandlerFunction:
    if not _handlers:
        raise CannotServe("there is no handler: write @handler above a function before serve() is called")
    return _handlers[0]


def _qualified_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
