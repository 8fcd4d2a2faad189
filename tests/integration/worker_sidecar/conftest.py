"""A place for sockets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.framework.worker import socket_place


@pytest.fixture
def place() -> Iterator[Path]:
    with socket_place() as place:
        yield place
