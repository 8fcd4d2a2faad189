"""Functions as a reaper or a dispatcher knows them, where no Kubernetes is needed to know them."""

from types import SimpleNamespace
from typing import cast

from gpu_runtime.activator.function_lister import Functions


async def _is_gone(_request_id: str) -> bool:
    return True


NONE = cast(Functions, SimpleNamespace(request_ids=set, serving=lambda _: None, certain=lambda: True, is_gone=_is_gone))
"""There are no functions."""

ONE = cast(Functions, SimpleNamespace(request_ids=lambda: {"f"}, serving=lambda _: object(), certain=lambda: True))
"""There is `f`."""
