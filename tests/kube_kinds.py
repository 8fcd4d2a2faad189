"""Kinds that only tests read through the client of the product."""

import msgspec

from gpu_runtime.kube.meta import ApiResource, KubeObject, KubeStruct


class NodeSpec(KubeStruct, frozen=True, kw_only=True):
    unschedulable: bool = False


class NodeStatus(KubeStruct, frozen=True, kw_only=True):
    allocatable: dict[str, str] = msgspec.field(default_factory=dict)


class Node(KubeObject, frozen=True, kw_only=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class DeploymentSpec(KubeStruct, frozen=True, kw_only=True):
    replicas: int = 1


class DeploymentStatus(KubeStruct, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0


class Deployment(KubeObject, frozen=True, kw_only=True):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


NODES = ApiResource("", "v1", "Node", "nodes", Node, namespaced=False)
DEPLOYMENTS = ApiResource("apps", "v1", "Deployment", "deployments", Deployment)
