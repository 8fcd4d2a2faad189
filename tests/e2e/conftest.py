"""A real node that all e2e tests share. It does not conflict with a running development platform.

The tests run in random order, and some of them need every GPU of the node. So no test file may leave a pod with a GPU.
"""

import contextlib
import uuid
from collections.abc import Generator, Iterator

import pytest
from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

from localcluster import dev_platform
from localcluster.node import Node
from localcluster.node import temporary_node as start_node
from localcluster.supervisor_client import ProcessFailed, wait_until
from tests.conftest import enter_or_skip

ACTIVE_PHASES = ("Pending", "Running")


@pytest.fixture(scope="package")
def node() -> Iterator[Node]:
    """A node that runs real pods and advertises 16 simulated GPUs."""
    with enter_or_skip(start_node()) as node:
        yield node


@pytest.fixture(scope="package")
def deployed_platform(node: Node) -> Node:
    """Deploy all processes and NATS to the node, with the manifests that a user applies to a cluster.

    All tests deploy the whole platform. If some deployed only a part of it, the other processes would fail in the
    meantime, and a later test would have to wait until they have recovered.
    """
    dev_platform.apply_kustomizations(node, *dev_platform.KUSTOMIZATIONS)
    for namespace, workload in dev_platform.WORKLOADS:
        node.kubectl("rollout", "status", workload, f"--namespace={namespace}", "--timeout=240s")
    return node


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


@pytest.fixture(scope="module", autouse=True)
def all_gpus_are_released(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the tests of a file, wait until no pod holds a GPU. Fail if one remains, because it belongs to the file."""
    tests_of_file = [each for each in request.session.items if each.getparent(pytest.Module) is request.node]
    uses_node = any("node" in getattr(each, "fixturenames", ()) for each in tests_of_file)
    client: Client | None = request.getfixturevalue("kube") if uses_node else None
    yield
    if client is None:
        return
    try:
        wait_until(lambda: not pods_with_gpus(client), 120, lambda: f"pods with GPUs remain: {pods_with_gpus(client)}")
    except ProcessFailed:
        delete_all_units(request.getfixturevalue("node"))  # so that the tests of the other files do not fail
        raise


def delete_all_units(node: Node) -> None:
    for kind, scope in (
        ("gpuunits", "--all-namespaces"),
        ("stockpools", "--all-namespaces"),
        ("pods", "--namespace=default"),
    ):
        with contextlib.suppress(ProcessFailed):  # without the custom resource definitions, there are no units
            node.kubectl("delete", kind, scope, "--all", "--timeout=60s")


def pods_with_gpus(client: Client) -> list[str]:
    """Return the pods that hold or wait for a GPU."""
    pods = [each for each in client.list(Pod, namespace="*") if each.status and each.status.phase in ACTIVE_PHASES]
    return [f"{each.metadata.namespace}/{each.metadata.name}" for each in pods if each.metadata and requests_gpu(each)]


def requests_gpu(pod: Pod) -> bool:
    containers = pod.spec.containers if pod.spec else []
    return any("nvidia.com/gpu" in ((each.resources and each.resources.limits) or {}) for each in containers)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the cluster to the report of a failed test: at the end of the run the cluster is gone."""
    report = yield
    node = getattr(item, "funcargs", {}).get("node")
    if report.failed and node is not None:
        report.sections.append(("state of the cluster", describe_cluster(node)))
    return report


def describe_cluster(node: Node) -> str:
    commands = (
        "get gpuunits,stockpools,gpustorages,pods --all-namespaces --output=wide",
        "describe nodes",
        "get events --all-namespaces --sort-by=.lastTimestamp",
        "logs deployment/controller-manager --namespace=runtime-system --all-pods --tail=40",
    )
    return "\n\n".join(f"$ kubectl {each}\n{_output(node, each)}" for each in commands)


def _output(node: Node, command: str) -> str:
    try:
        return "\n".join(node.kubectl(*command.split()).splitlines()[-60:])
    except ProcessFailed as error:
        return str(error)
