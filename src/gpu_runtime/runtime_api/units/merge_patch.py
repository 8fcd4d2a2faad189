"""What a merge patch must say to turn one spec into another. Pure."""

from typing import Any

import msgspec
from msgspec import Struct


def difference(before: Struct, after: Struct) -> dict[str, Any]:
    """Only what differs, field by field, so that fields of a newer schema stay. Empty where nothing differs.

    In a merge patch, what is left out stays: what is to go away is null. Lists are replaced as a whole.
    """
    fields = msgspec.structs.fields(type(after))
    pairs = {each.encode_name: (getattr(before, each.name), getattr(after, each.name)) for each in fields}
    return {name: _change(old, new) for name, (old, new) in pairs.items() if old != new}


def _change(old: Any, new: Any) -> Any:
    if isinstance(old, Struct) and isinstance(new, Struct):
        return difference(old, new)
    return None if new in (None, "", ()) else msgspec.to_builtins(new)
