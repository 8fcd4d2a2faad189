"""Computes the JSON merge patch (RFC 7386) that turns one spec into another. Pure functions."""

from typing import Any

import msgspec
from msgspec import Struct


def create_merge_patch(before: Struct, after: Struct) -> dict[str, Any]:
    """Return the fields that differ. The result is empty if the specs are equal.

    The patch omits equal fields, so that the object keeps fields of a newer schema that this version does not know. A
    merge patch does not change omitted fields. It removes fields with the value null, and it replaces lists as a whole.
    """
    fields = msgspec.structs.fields(type(after))
    values = {each.encode_name: (getattr(before, each.name), getattr(after, each.name)) for each in fields}
    return {name: _patch_value(old, new) for name, (old, new) in values.items() if old != new}


def _patch_value(old: Any, new: Any) -> Any:
    if isinstance(old, Struct) and isinstance(new, Struct):
        return create_merge_patch(old, new)
    return None if new in (None, "", ()) else msgspec.to_builtins(new)
