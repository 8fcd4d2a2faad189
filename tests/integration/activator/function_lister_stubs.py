"""Functions as a reaper or a dispatcher knows them, where no Kubernetes is needed to know them."""

from types import SimpleNamespace
from typing import cast

from gpu_runtime.activator.function_lister import FunctionLister


async def _confirm_not_found(_request_id: str) -> bool:
    return True


NO_FUNCTIONS = cast(
    FunctionLister,
    SimpleNamespace(request_ids=set, serving=lambda _: None, certain=lambda: True, is_gone=_confirm_not_found),
)
"""There are no functions."""

ONE_FUNCTION = cast(
    FunctionLister, SimpleNamespace(request_ids=lambda: {"f"}, serving=lambda _: object(), certain=lambda: True)
)
"""There is `f`."""
