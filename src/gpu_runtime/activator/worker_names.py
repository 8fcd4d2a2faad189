"""Computes the names of workers. The number of slots of a function is maxWorkers, and each slot has one worker name.

Two processes may both act as leader for a short time. Even then, they cannot create more workers than there are names.
Nothing here awaits.
"""

import hashlib
from collections.abc import Callable

from gpu_runtime.contract.crd.well_known import MAX_NAME_LENGTH

MAX_SUFFIX_LENGTH = len("-w9999")
_MAX_PREFIX_LENGTH = MAX_NAME_LENGTH - MAX_SUFFIX_LENGTH - 9


def worker_name(function: str, slot: int) -> str:
    """Return the name of the worker in a slot. If the function name is too long, truncate it and append its digest."""
    if len(function) + MAX_SUFFIX_LENGTH > MAX_NAME_LENGTH:
        function = f"{function[:_MAX_PREFIX_LENGTH].rstrip('-')}-{hashlib.sha256(function.encode()).hexdigest()[:8]}"
    return f"{function}-w{slot}"


def free_slots(
    function: str, slot_count: int, max_slots: int, is_taken: Callable[[str], bool], foreign: int = 0
) -> list[int]:
    """Return the lowest slots whose names are free, but at most `max_slots` slots.

    `foreign` is the number of slot names that units of other owners have. The function gets the same number of
    additional slots with higher numbers.
    """
    slots: list[int] = []
    for slot in range(slot_count + foreign):
        if len(slots) == max_slots:
            break
        if not is_taken(worker_name(function, slot)):
            slots.append(slot)
    return slots
