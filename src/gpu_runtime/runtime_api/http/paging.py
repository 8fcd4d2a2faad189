"""Pages of a list that lives: each page resumes after a name, so objects that come and go neither repeat nor hide
others. Pure."""

import base64
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, field

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.runtime_api.http.route import Query

T = TypeVar("T")
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 500


class PagedQuery(Query, frozen=True, kw_only=True):
    """What every list is asked."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE)] = DEFAULT_PAGE_SIZE
    """How many to answer with at most."""

    after: str | None = field(default=None, name="continue")
    """The `continue` of the page before."""


def paginate(
    items: Sequence[T], key: Callable[[T], tuple[str, str]], limit: int, after: str | None
) -> tuple[list[T], str | None]:
    """The next items in the order of their keys, and where the page after them resumes: None on the last one."""
    passed = decode_cursor(after) if after else ("", "")
    rest = sorted((item for item in items if key(item) > passed), key=key)
    found = rest[:limit]
    return found, encode_cursor(key(found[-1])) if len(rest) > limit else None


def encode_cursor(last: tuple[str, str]) -> str:
    """Where a page ended, as one word for the caller to hand back."""
    return base64.urlsafe_b64encode(msgspec.json.encode(last)).decode().rstrip("=")


def decode_cursor(after: str) -> tuple[str, str]:
    try:
        padded = after.encode() + b"=" * (-len(after) % 4)
        return msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=tuple[str, str])
    except ValueError as error:  # whether it is no base64, no JSON or no pair of texts
        raise Invalid(
            [FieldError("continue", "cannot be read; pass on what the page before gave, or leave it out to begin anew")]
        ) from error
