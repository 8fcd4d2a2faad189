"""What every test may ask for: a shared control plane, a namespace of its own, a NATS account of its own.

Starting the shared ones costs seconds once per run; a test's own namespace and account cost milliseconds. Where this
machine cannot give them, the tests that asked are left out, which is said at the end of the run and fails it in CI.
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
from tests.xdist_scheduler import SerialGroupScheduling

SKIP_REASON_PREFIX = "LEFT OUT: "

T = TypeVar("T")


@contextmanager
def enter_or_skip(thing: AbstractContextManager[T]) -> Iterator[T]:
    """Enter it, or leave the tests out that need it."""
    try:
        entered = thing.__enter__()
    except MissingRequirement as unmet:
        if os.environ.get("CI") == "true":
            pytest.fail(f"nothing may be left out in CI: {unmet}", pytrace=False)
        pytest.skip(f"{SKIP_REASON_PREFIX}{unmet}")
    try:
        yield entered
    finally:
        thing.__exit__(None, None, None)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server, controller manager and scheduler with simulated GPU nodes, shared by the whole run."""
    with enter_or_skip(control_planes.temporary_control_plane()) as plane:
        yield plane


@pytest.fixture(scope="session")
def kube(control_plane: ControlPlane) -> Iterator[Client]:
    """A client with every right, for looking at the cluster with other eyes than the product's."""
    with control_plane.client() as client:
        yield client


@pytest.fixture
def namespace(kube: Client) -> Iterator[str]:
    """A namespace of the test's own. Its end is asked for, not waited for: that takes Kubernetes five seconds."""
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
    """A NATS account of the test's own: nobody else sees its streams and subjects."""
    return nats.create_account()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SerialGroupScheduling:
    return SerialGroupScheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if SKIP_REASON_PREFIX in reason:
            reasons[reason.partition(SKIP_REASON_PREFIX)[2]] += 1
    if reasons:
        terminalreporter.section("NOT EVERYTHING WAS TESTED", sep="!", red=True, bold=True)
        for reason, count in reasons.items():
            terminalreporter.line(f"{count} tests were left out: {reason}", red=True)
