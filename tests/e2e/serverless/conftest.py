"""The whole platform on the real node."""

import pytest

from localcluster import dev_platform
from localcluster.node import Node


@pytest.fixture(scope="package")
def deployed_platform(node: Node) -> Node:
    """The node with everything deployed into it, NATS included, by the manifests that any cluster gets."""
    dev_platform.apply_kustomizations(node, *dev_platform.KUSTOMIZATIONS)
    for namespace, workload in dev_platform.WORKLOADS:
        node.kubectl("rollout", "status", workload, f"--namespace={namespace}", "--timeout=180s")
    return node
