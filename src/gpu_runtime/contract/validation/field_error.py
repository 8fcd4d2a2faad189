"""FieldError: the path of an invalid field, and a message that says what is wrong and what to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class FieldError:
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


FieldErrors: TypeAlias = Iterator[FieldError]


def child_path(at: str, field: str) -> str:
    return f"{at}.{field}" if at else field
