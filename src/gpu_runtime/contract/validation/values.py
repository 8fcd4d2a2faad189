"""Single values: names, identifiers, images, quantities, counts."""

import re

from gpu_runtime.contract.crd.operation import OPERATION_ID_LIMIT
from gpu_runtime.contract.crd.well_known import NAME_LIMIT, NAME_PATTERN, SPEC_NAME_PATTERN
from gpu_runtime.contract.validation.field_error import Problem, Problems
from gpu_runtime.kube.quantity import Quantity

COUNT_LIMIT = 2**31 - 1
SPEC_NAME_LIMIT = 63


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text fits: `$` alone would let a trailing line break through."""
    return re.fullmatch(pattern, text, re.ASCII) is not None


def name_problems(name: str, at: str = "name", limit: int = NAME_LIMIT) -> Problems:
    if not name:
        yield Problem(at, "is required")
    elif len(name) > limit:
        yield Problem(at, f"{name!r} has {len(name)} characters; use at most {limit}")
    elif not matches(NAME_PATTERN, name):
        yield Problem(
            at,
            f"{name!r} is not a name; use lower-case letters, digits and '-', beginning with a letter and ending with a"
            " letter or digit",
        )


def spec_name_problems(name: str, at: str) -> Problems:
    if not name:
        yield Problem(at, "is required; name the flavour, for example g1.1")
    elif len(name) > SPEC_NAME_LIMIT:
        yield Problem(at, f"has {len(name)} characters; use at most {SPEC_NAME_LIMIT}")
    elif not matches(SPEC_NAME_PATTERN, name):
        yield Problem(
            at, f"{name!r} is not a flavour; use letters, digits, '-', '_' and '.', with a letter or digit at both ends"
        )


def operation_id_problems(operation_id: str, at: str = "operationID") -> Problems:
    if not operation_id:
        yield Problem(at, "is required; choose one per operation and keep it for retries")
    elif len(operation_id) > OPERATION_ID_LIMIT:
        yield Problem(at, f"has {len(operation_id)} characters; use at most {OPERATION_ID_LIMIT}")
    elif not operation_id.isprintable() or operation_id != operation_id.strip():
        yield Problem(at, "has line breaks, control characters or blanks at an end; use printable characters")


def image_problems(image: str, at: str) -> Problems:
    if not image:
        yield Problem(at, "is required; name the image to run")
    elif len(image) > 1024:
        yield Problem(at, f"has {len(image)} characters; use at most 1024")
    elif any(character.isspace() or not character.isprintable() for character in image):
        yield Problem(at, f"{image!r} is not an image; it must not contain blanks")


def bytes_problems(text: str, at: str) -> Problems:
    """A quantity of bytes: positive, and whole, since 16m (16 thousandths of a byte) was meant as 16M or 16Mi."""
    try:
        amount = Quantity(text).value
    except ValueError:
        yield Problem(at, f"{text!r} is not a quantity; write for example 512Mi or 16Gi")
        return
    if amount <= 0:
        yield Problem(at, f"{text} is not above 0")
    elif amount.denominator != 1:
        yield Problem(at, f"{text} is not a whole number of bytes; write for example 512Mi or 16Gi")
    elif amount >= 2**63:
        yield Problem(at, f"{text} is more than Kubernetes can count; use less than 8Ei")


def count_problems(count: int, at: str, least: int = 0, most: int = COUNT_LIMIT) -> Problems:
    if not least <= count <= most:
        yield Problem(at, f"{count} is not between {least} and {most}")
