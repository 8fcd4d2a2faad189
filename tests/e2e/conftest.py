"""A real node that all e2e tests share. It does not conflict with a running development platform."""

import uuid
from collections.abc import Iterator

import pytest
from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

from localcluster.node import Node
from localcluster.node import temporary_node as start_node
from tests.conftest import enter_or_skip


@pytest.fixture(scope="package")
def node() -> Iterator[Node]:
    """A node that runs real pods and advertises 16 simulated GPUs."""
    with enter_or_skip(start_node()) as node:
        yield node


@pytest.fixture(scope="package")
def kube(node: Node) -> Iterator[Client]:
    with node.control_plane.client() as client:
        yield client


@pytest.fixture
def namespace(kube: Client) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:12]}"
    kube.create(Namespace(metadata=ObjectMeta(name=name)))
    yield name
    kube.delete(Namespace, name)
