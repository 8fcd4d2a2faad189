"""FieldError: the path of an invalid field, and a message that says what is wrong and what to do.

A document can have as many errors as bytes, and an error can quote any part of the document. So the number of errors
and the length of each error are limited. Otherwise a caller could make the validation slow and the
response long.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

MAX_FIELD_ERRORS = 20
"""Maximum number of errors that are reported for one document."""
MAX_PATH_CHARACTERS = 200
MAX_MESSAGE_CHARACTERS = 400


@dataclass(frozen=True)
class FieldError:
    path: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _shorten(self.path, MAX_PATH_CHARACTERS))
        object.__setattr__(self, "message", _shorten(self.message, MAX_MESSAGE_CHARACTERS))

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


FieldErrors: TypeAlias = Iterator[FieldError]


def first_errors(*sources: Iterable[FieldError]) -> tuple[FieldError, ...]:
    """Return the first errors without repetitions. The function reads no more errors from the sources than needed."""
    found: dict[FieldError, None] = {}
    for error in chain.from_iterable(sources):
        found.setdefault(error)
        if len(found) == MAX_FIELD_ERRORS:
            break
    return tuple(found)


def child_path(at: str, field: str) -> str:
    return f"{at}.{field}" if at else field


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
