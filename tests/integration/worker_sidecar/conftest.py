"""A place for sockets: pytest's own directories may be too deep for a socket's path."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def module_place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="fw-"))
    yield place
    shutil.rmtree(place)


@pytest.fixture
def place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="fw-"))
    yield place
    shutil.rmtree(place)
