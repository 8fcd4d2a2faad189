"""Names of workers: so many slots as the function may have workers. Pure.

Two leaders, of which one does not know yet that it leads no more, cannot make more workers than there are names.
"""

import hashlib
from collections.abc import Callable

from gpu_runtime.contract.crd.well_known import MAX_NAME_LENGTH

MAX_SUFFIX_LENGTH = len("-w9999")
_MAX_PREFIX_LENGTH = MAX_NAME_LENGTH - MAX_SUFFIX_LENGTH - 9


def worker_name(function: str, slot: int) -> str:
    """The name of the worker in a slot. Of a function with a long name it begins with what fits, and a digest."""
    if len(function) + MAX_SUFFIX_LENGTH > MAX_NAME_LENGTH:
        function = f"{function[:_MAX_PREFIX_LENGTH].rstrip('-')}-{hashlib.sha256(function.encode()).hexdigest()[:8]}"
    return f"{function}-w{slot}"


def free_slots(function: str, most: int, wanted: int, taken: Callable[[str], bool], foreign: int = 0) -> list[int]:
    """The lowest slots whose names are free, at most so many. Where others' units have some, there are higher ones."""
    found: list[int] = []
    for slot in range(most + foreign):
        if len(found) == wanted:
            break
        if not taken(worker_name(function, slot)):
            found.append(slot)
    return found
