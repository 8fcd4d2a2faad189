"""Places for sockets: one of the test's own, and one that a module shares."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.framework.framework_process import temporary_socket_dir


@pytest.fixture(scope="module")
def module_socket_dir() -> Iterator[Path]:
    with temporary_socket_dir() as place:
        yield place


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    with temporary_socket_dir() as place:
        yield place
