"""Pagination of lists that change between requests. Pure functions.

Each page starts after the last key of the previous page. Objects that are created or deleted between two requests
therefore cause no duplicates and no gaps.
"""

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
    """The query parameters of every list."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE)] = DEFAULT_PAGE_SIZE
    """The maximum number of items in the response."""

    after: str | None = field(default=None, name="continue")
    """The `continue` token of the previous page. Absent for the first page."""


def paginate(
    items: Sequence[T], key: Callable[[T], tuple[str, str]], limit: int, after: str | None
) -> tuple[list[T], str | None]:
    """Return the items of the page in the order of their keys, and the continue token of the next page or None."""
    last_key = decode_cursor(after) if after else ("", "")
    remaining = sorted((item for item in items if key(item) > last_key), key=key)
    page = remaining[:limit]
    return page, encode_cursor(key(page[-1])) if len(remaining) > limit else None


def encode_cursor(last_key: tuple[str, str]) -> str:
    """Return the continue token of a page that ends with this key."""
    return base64.urlsafe_b64encode(msgspec.json.encode(last_key)).decode().rstrip("=")


def decode_cursor(after: str) -> tuple[str, str]:
    try:
        padded = after.encode() + b"=" * (-len(after) % 4)
        return msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=tuple[str, str])
    except ValueError as error:  # not base64, not JSON, or not a pair of strings
        text = "is not a valid token; send the token of the previous page, or none for the first page"
        raise Invalid([FieldError("continue", text)]) from error
