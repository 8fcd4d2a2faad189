"""Stubs of FunctionLister for tests of the reaper and the dispatcher without Kubernetes."""

from types import SimpleNamespace
from typing import cast

from gpu_runtime.activator.function_lister import FunctionLister


async def _confirm_not_found(_function_id: str) -> bool:
    return True


NO_FUNCTIONS = cast(
    FunctionLister,
    SimpleNamespace(
        ids=set,
        by_id=lambda _: None,
        cache_is_fresh=lambda: True,
        confirm_not_found=_confirm_not_found,
    ),
)
"""A lister without functions."""

ONE_FUNCTION = cast(
    FunctionLister,
    SimpleNamespace(ids=lambda: {"f"}, by_id=lambda _: object(), cache_is_fresh=lambda: True),
)
"""A lister with the function `f`."""
