"""The one handler of this process."""

from collections.abc import Callable
from typing import Any, TypeVar

from gpu_runtime.framework.errors import CannotServe
from gpu_runtime.framework.request import Request

Handler = Callable[[Request], Any]
F = TypeVar("F", bound=Callable[..., Any])

_registered: list[Handler] = []


def handler(function: F) -> F:
    """Make this function, plain or async, the handler of the process. The function itself stays as it is."""
    if not callable(function):
        raise TypeError(f"@handler takes no arguments: write it alone above a function, not with {function!r}")
    if _registered:
        raise RuntimeError(
            f"there is a handler already, {_name(_registered[0])}; {_name(function)} needs a process of its own"
        )
    _registered.append(function)
    return function


def registered() -> Handler:
    if not _registered:
        raise CannotServe("there is no handler: write @handler above a function before serve() is called")
    return _registered[0]


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
