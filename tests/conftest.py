"""Fixtures for all tests: a shared control plane and NATS server, and a namespace and a NATS account for each test.

The start of the shared servers takes seconds, once per run. A namespace or an account takes milliseconds. If a
requirement of the servers is missing on this machine, the tests that need them are skipped. The end of the run lists
the skipped tests. In CI a skipped test fails the run.
"""

import os
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import pytest
from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace
from xdist.remote import Producer

from localcluster import control_plane as control_planes
from localcluster.control_plane import ControlPlane
from localcluster.errors import MissingRequirement
from localcluster.nats_server import NatsAccount, NatsServer, temporary_nats_server
from tests.xdist_scheduler import SerialGroupScheduling, is_serial

SKIP_REASON_PREFIX = "SKIPPED: "

T = TypeVar("T")


@contextmanager
def enter_or_skip(context: AbstractContextManager[T]) -> Iterator[T]:
    """Enter a context. Skip the tests that need it if a requirement is missing, or fail them in CI."""
    try:
        entered = context.__enter__()
    except MissingRequirement as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no test may be skipped in CI: {error}", pytrace=False)
        pytest.skip(f"{SKIP_REASON_PREFIX}{error}")
    try:
        yield entered
    finally:
        context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server, controller manager and scheduler with simulated GPU nodes, shared by the whole run."""
    with enter_or_skip(control_planes.temporary_control_plane()) as plane:
        yield plane


@pytest.fixture(scope="session")
def kube(control_plane: ControlPlane) -> Iterator[Client]:
    """A client with administrator rights. It does not use the product's own client code."""
    with control_plane.client() as client:
        yield client


@pytest.fixture
def namespace(kube: Client) -> Iterator[str]:
    """A namespace for one test. The fixture does not wait for its deletion, which takes five seconds."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    kube.create(Namespace(metadata=ObjectMeta(name=name)))
    yield name
    kube.delete(Namespace, name)


@pytest.fixture(scope="session")
def nats() -> Iterator[NatsServer]:
    """A real NATS server with JetStream, shared by the whole run."""
    with enter_or_skip(temporary_nats_server()) as server:
        yield server


@pytest.fixture
def nats_account(nats: NatsServer) -> NatsAccount:
    """A NATS account for one test. Its streams and subjects are isolated from other accounts."""
    return nats.create_account()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests that pytest-randomly has shuffled: the serial group, which takes longest, comes first.

    The tests of a folder stay together, and so do all tests of tests/e2e. They share fixtures that take long to set up.
    """
    positions: dict[str, int] = {}

    def sort_key(item: pytest.Item) -> tuple[bool, bool, int]:
        folder = item.nodeid.partition("::")[0].rpartition("/")[0]
        is_e2e = folder.startswith("tests/e2e")
        return not is_serial(item.nodeid), not is_e2e, positions.setdefault(folder, len(positions))

    items.sort(key=sort_key)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SerialGroupScheduling:
    return SerialGroupScheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if SKIP_REASON_PREFIX in reason:
            reasons[reason.partition(SKIP_REASON_PREFIX)[2]] += 1
    if reasons:
        terminalreporter.section("SOME TESTS WERE SKIPPED", sep="!", red=True, bold=True)
        for reason, count in reasons.items():
            terminalreporter.line(f"{count} tests were skipped: {reason}", red=True)
