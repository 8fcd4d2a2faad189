"""Registers the handler function of the process. A process has exactly one handler."""

from collections.abc import Callable
from typing import Any, TypeVar

from gpu_runtime.framework.errors import CannotServe
from gpu_runtime.framework.request import Request

HandlerFunction = Callable[[Request], Any]
F = TypeVar("F", bound=Callable[..., Any])

_handlers: list[HandlerFunction] = []


def handler(function: F) -> F:
    """Register a synchronous or async function as the handler of the process, and return the function unchanged."""
    if not callable(function):
        raise TypeError(
            f"@handler takes no arguments, but got {function!r}; write @handler on its own line above a function"
        )
    if _handlers:
        raise RuntimeError(
            f"the process already has the handler {_qualified_name(_handlers[0])};"
            f" serve {_qualified_name(function)} in another process"
        )
    _handlers.append(function)
    return function


def registered_handler() -> HandlerFunction:
    if not _handlers:
        raise CannotServe("the process has no handler; write @handler above a function before you call serve()")
    return _handlers[0]


def _qualified_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
