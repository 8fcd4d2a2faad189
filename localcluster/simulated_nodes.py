"""Adds simulated GPU nodes. kwok acts as their kubelet, so that thousands of pods become Ready without a container."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightkube import Client
from lightkube.models.core_v1 import NodeStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node

if TYPE_CHECKING:
    from localcluster.control_plane import ControlPlane

KWOK_NODE_ANNOTATION = "kwok.x-k8s.io/node"
KWOK_STAGES = Path(__file__).with_suffix(".yaml")


def start_kwok(plane: ControlPlane, kwok: Path) -> None:
    plane.processes.start(
        "kwok",
        [
            kwok,
            f"--config={KWOK_STAGES}",
            f"--kubeconfig={plane.kubeconfig_for('kwok', 'kwok', 'system:masters')}",
            f"--manage-nodes-with-annotation-selector={KWOK_NODE_ANNOTATION}=fake",
            # kwok renews each lease four times in this time. It is much shorter than the node monitor grace period.
            "--node-lease-duration-seconds=20",
            "--cidr=10.128.0.0/9",
            "--node-ip=10.127.0.1",
        ],
    )


def add_nodes(client: Client, count: int, gpus: int, prefix: str = "simulated") -> list[str]:
    """Create nodes with GPUs and capacity for thousands of small pods."""
    names = [f"{prefix}-{index}" for index in range(count)]
    for name in names:
        add_node(client, name, gpus)
    return names


def add_node(client: Client, name: str, gpus: int) -> None:
    capacity = {"cpu": "256", "memory": "4Ti", "ephemeral-storage": "64Ti", "pods": "4000", "nvidia.com/gpu": str(gpus)}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"}
    client.create(
        Node(
            metadata=ObjectMeta(name=name, labels=labels, annotations={KWOK_NODE_ANNOTATION: "fake"}),
            status=NodeStatus(capacity=capacity, allocatable=capacity),
        )
    )
