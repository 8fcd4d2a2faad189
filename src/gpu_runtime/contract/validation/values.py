"""Validation of single values: names, IDs, images, quantities, counts."""

import re
from collections.abc import Sequence

from gpu_runtime.contract.crd.operation import MAX_OPERATION_ID_LENGTH
from gpu_runtime.contract.crd.template import (
    MAX_HTTP_PATH_LENGTH,
    MAX_SECRET_KEY_LENGTH,
    MAX_SECRET_NAME_LENGTH,
    SECRET_KEY_PATTERN,
    SECRET_NAME_PATTERN,
    SECRET_NAME_PREFIX,
)
from gpu_runtime.contract.crd.well_known import (
    MAX_NAME_LENGTH,
    NAME_PATTERN,
    RESERVED_OPERATION_ID_PREFIX,
    SPEC_NAME_PATTERN,
)
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors
from gpu_runtime.kube.quantity import Quantity

MAX_COUNT = 2**31 - 1
MAX_CPUS = 4096
MAX_SPEC_NAME_LENGTH = 63


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text matches the pattern. `re.match` with `$` would accept a trailing line break."""
    return re.fullmatch(pattern, text, re.ASCII) is not None


def name_errors(name: str, at: str = "name", max_length: int = MAX_NAME_LENGTH) -> FieldErrors:
    if not name:
        yield FieldError(at, "is required")
    elif len(name) > max_length:
        yield FieldError(at, f"{name!r} has {len(name)} characters; use at most {max_length}")
    elif not matches(NAME_PATTERN, name):
        yield FieldError(
            at,
            f"{name!r} is not a name; use lower-case letters, digits and '-', begin with a letter and end with a letter"
            " or digit",
        )


def namespace_errors(namespace: str, allowed: Sequence[str], resources: str) -> FieldErrors:
    """Yield an error if a request names a namespace that is not allowed for these resources."""
    if namespace and namespace not in allowed:
        text = f"{namespace!r} is not allowed for {resources}; use {' or '.join(allowed)}, or omit it"
        yield FieldError("namespace", text)


def spec_name_errors(name: str, at: str) -> FieldErrors:
    if not name:
        yield FieldError(at, "is required; name the flavor, for example g1.1")
    elif len(name) > MAX_SPEC_NAME_LENGTH:
        yield FieldError(at, f"has {len(name)} characters; use at most {MAX_SPEC_NAME_LENGTH}")
    elif not matches(SPEC_NAME_PATTERN, name):
        yield FieldError(
            at, f"{name!r} is not a flavor; use letters, digits, '-', '_' and '.', with a letter or digit at both ends"
        )


def operation_id_errors(operation_id: str, at: str = "operationID") -> FieldErrors:
    if not operation_id:
        yield FieldError(at, "is required; choose one per operation and use the same one for retries")
    elif len(operation_id) > MAX_OPERATION_ID_LENGTH:
        yield FieldError(at, f"has {len(operation_id)} characters; use at most {MAX_OPERATION_ID_LENGTH}")
    elif not operation_id.isprintable() or operation_id != operation_id.strip():
        yield FieldError(at, "has control characters, or whitespace at the start or end; remove these characters")
    elif operation_id.startswith(RESERVED_OPERATION_ID_PREFIX):
        yield FieldError(at, f"begins with {RESERVED_OPERATION_ID_PREFIX}, which only the platform uses; remove it")


def secret_name_errors(name: str, at: str) -> FieldErrors:
    if not name:
        yield FieldError(at, f"is required; name a Secret that begins with {SECRET_NAME_PREFIX}")
    elif len(name) > MAX_SECRET_NAME_LENGTH:
        yield FieldError(at, f"has {len(name)} characters; use at most {MAX_SECRET_NAME_LENGTH}")
    elif not name.startswith(SECRET_NAME_PREFIX):
        yield FieldError(at, f"{name!r} does not begin with {SECRET_NAME_PREFIX}; units can use only such Secrets")
    elif not matches(SECRET_NAME_PATTERN, name):
        yield FieldError(at, f"{name!r} is not the name of a Secret; use lower-case letters, digits, '-' and '.'")


def secret_key_errors(key: str, at: str) -> FieldErrors:
    is_path = key == "." or key.startswith("..")
    if not 0 < len(key) <= MAX_SECRET_KEY_LENGTH or is_path or not matches(SECRET_KEY_PATTERN, key):
        text = f"{key!r} is not a key of a Secret; use 1 to {MAX_SECRET_KEY_LENGTH} letters, digits, '-', '_' and '.'"
        yield FieldError(at, text)


def http_path_errors(path: str, at: str) -> FieldErrors:
    if len(path) > MAX_HTTP_PATH_LENGTH:
        yield FieldError(at, f"has {len(path)} characters; use at most {MAX_HTTP_PATH_LENGTH}")
    elif not path.startswith("/") or not path.isprintable() or any(map(str.isspace, path)):
        yield FieldError(at, f"{path!r} is not an HTTP path; begin with '/', and use no spaces or control characters")


def image_errors(image: str, at: str) -> FieldErrors:
    if not image:
        yield FieldError(at, "is required; name the image to run")
    elif len(image) > 1024:
        yield FieldError(at, f"has {len(image)} characters; use at most 1024")
    elif any(character.isspace() or not character.isprintable() for character in image):
        yield FieldError(at, f"{image!r} is not an image name; remove whitespace and control characters")


def bytes_errors(text: str, at: str) -> FieldErrors:
    """Yield the errors of a quantity of bytes, which must be a positive whole number.

    For example, 16m (0.016 bytes) is a typo for 16M or 16Mi.
    """
    errors = tuple(_amount_errors(text, at, "bytes", "write for example 512Mi or 16Gi"))
    yield from errors
    if not errors and Quantity(text).value >= 2**63:
        yield FieldError(at, f"{text} is more than Kubernetes supports; use less than 8Ei")


def cpu_errors(text: str, at: str) -> FieldErrors:
    """Yield the errors of a number of CPUs. Kubernetes counts CPUs in thousandths."""
    remedy = "write for example 4 or 500m"
    errors = tuple(_amount_errors(text, at, "thousandths of a CPU", remedy, units_per_one=1000))
    yield from errors
    if not errors and Quantity(text).value > MAX_CPUS:
        yield FieldError(at, f"{text} is more than {MAX_CPUS} CPUs; {remedy}")


def _amount_errors(text: str, at: str, unit: str, remedy: str, *, units_per_one: int = 1) -> FieldErrors:
    """Yield the errors of a quantity that must be a positive whole number of units."""
    try:
        amount = Quantity(text).value
    except ValueError:
        yield FieldError(at, f"{text!r} is not a quantity; {remedy}")
        return
    if amount <= 0:
        yield FieldError(at, f"{text} is not greater than 0; {remedy}")
    elif (amount * units_per_one).denominator != 1:
        yield FieldError(at, f"{text} is not a whole number of {unit}; {remedy}")


def count_errors(count: int, at: str, minimum: int = 0, maximum: int = MAX_COUNT) -> FieldErrors:
    if not minimum <= count <= maximum:
        yield FieldError(at, f"{count} is not between {minimum} and {maximum}")
