"""The hash of a request. It decides whether two requests with the same operationID or invocationID are identical.

Requests with the same meaning have the same hash on every replica and in every version.
"""

import hashlib
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo

from gpu_runtime.contract.crd.operation import OperationType


def canonical_request(request: Struct) -> str:
    """Return the request as JSON with sorted keys, without fields that are empty or have their default value.

    A caller can omit exactly these fields, so the text is the same whether the caller sends or omits them. For the same
    reason, a field that a later version adds does not change the hashes of existing requests.
    """
    return msgspec.json.encode(_to_plain(request), order="sorted").decode()


def request_hash(kind: OperationType, canonical: str) -> str:
    return hashlib.sha256(f"{kind.value}\n{canonical}".encode()).hexdigest()


def _to_plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return _non_default_fields(value)
    if isinstance(value, dict):
        return {key: _to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(each) for each in value]
    return value


def _non_default_fields(request: Struct) -> dict[str, Any]:
    """Return the fields whose values differ from the defaults.

    The option `omit_defaults` of msgspec does not do this, because it compares by identity and not by value.
    """
    fields = ((each.encode_name, getattr(request, each.name), each.default) for each in _struct_fields(type(request)))
    plain = ((name, _to_plain(value), default) for name, value, default in fields if value != default)
    # An object without fields has a meaning if it can be absent: `tcpSocket: {}` is a check of the primary port.
    return {
        name: value for name, value, default in plain if value not in (None, "", [], {}) or _is_present(value, default)
    }


def _is_present(value: Any, default: Any) -> bool:
    return value == {} and default is None


@cache
def _struct_fields(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """Return the fields of a struct. They are cached, because msgspec evaluates the annotations on every call."""
    return msgspec.structs.fields(kind)
