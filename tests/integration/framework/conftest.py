"""Places for sockets: one of the test's own, and one that a module shares."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.framework.worker import socket_place


@pytest.fixture(scope="module")
def module_place() -> Iterator[Path]:
    with socket_place() as place:
        yield place


@pytest.fixture
def place() -> Iterator[Path]:
    with socket_place() as place:
        yield place
