"""The request that an operation recorded, read again by whoever goes on with it."""

from typing import TypeVar

import msgspec

from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.errors import Unavailable

T = TypeVar("T")


def decode_request(operation: Operation, request: msgspec.json.Decoder[T]) -> T:
    """What was asked. What cannot be read here, a newer version may have recorded: it is left to that one."""
    try:
        return request.decode(operation.spec.request)
    except (msgspec.DecodeError, RecursionError) as error:
        id_ = operation.spec.operation_id
        raise Unavailable(f"the request that operation {id_} recorded cannot be read: {error}") from error
