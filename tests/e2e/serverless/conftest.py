"""A real node with the complete platform."""

import pytest

from localcluster import dev_platform
from localcluster.node import Node


@pytest.fixture(scope="package")
def deployed_platform(node: Node) -> Node:
    """Deploy all processes and NATS to the node, with the manifests that a user applies to a cluster."""
    dev_platform.apply_kustomizations(node, *dev_platform.KUSTOMIZATIONS)
    for namespace, workload in dev_platform.WORKLOADS:
        node.kubectl("rollout", "status", workload, f"--namespace={namespace}", "--timeout=180s")
    return node
