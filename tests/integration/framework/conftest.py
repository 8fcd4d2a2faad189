"""Directories for sockets: one for each test, and one that the tests of a module share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.framework.framework_process import temporary_socket_dir


@pytest.fixture(scope="module")
def module_socket_dir() -> Iterator[Path]:
    with temporary_socket_dir() as directory:
        yield directory


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    with temporary_socket_dir() as directory:
        yield directory
