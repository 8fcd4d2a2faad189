"""Decodes the request that an operation has recorded, to resume the operation."""

from typing import TypeVar

import msgspec

from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.errors import Unavailable

T = TypeVar("T")


def decode_request(operation: Operation, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the recorded request.

    Raises Unavailable if the request cannot be decoded. A newer version may have recorded it. Then a replica of that
    version resumes the operation.
    """
    try:
        return decoder.decode(operation.spec.request)
    except (msgspec.DecodeError, RecursionError) as error:
        id_ = operation.spec.operation_id
        raise Unavailable(f"the recorded request of operation {id_} cannot be decoded: {error}") from error
