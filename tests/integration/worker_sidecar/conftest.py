"""A directory for sockets for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.framework.framework_process import temporary_socket_dir


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    with temporary_socket_dir() as directory:
        yield directory
