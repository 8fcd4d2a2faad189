"""What a merge patch must say to turn one spec into another. Pure."""

from typing import Any

import msgspec
from msgspec import Struct


def create_merge_patch(before: Struct, after: Struct) -> dict[str, Any]:
    """Only what differs, field by field, so that fields of a newer schema stay. Empty where nothing differs.

    In a merge patch, what is left out stays: what is to go away is null. Lists are replaced as a whole.
    """
    fields = msgspec.structs.fields(type(after))
    pairs = {each.encode_name: (getattr(before, each.name), getattr(after, each.name)) for each in fields}
    return {name: _patch_value(old, new) for name, (old, new) in pairs.items() if old != new}


def _patch_value(old: Any, new: Any) -> Any:
    if isinstance(old, Struct) and isinstance(new, Struct):
        return create_merge_patch(old, new)
    return None if new in (None, "", ()) else msgspec.to_builtins(new)
