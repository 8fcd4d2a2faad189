"""Children as their owner reads them: the spec whole, for comparison with the one that is wanted."""

from typing import Any

import msgspec

from gpu_runtime.kube.builtin_kinds import DeploymentStatus
from gpu_runtime.kube.meta import ApiResource, KubeObject


class RawObject(KubeObject, frozen=True, kw_only=True):
    # No model of it: what a model does not name, or leaves out as a default, could never be compared.
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class RawDeployment(RawObject, frozen=True, kw_only=True):
    status: DeploymentStatus = DeploymentStatus()


class RawService(RawObject, frozen=True, kw_only=True):
    pass


class RawNetworkPolicy(RawObject, frozen=True, kw_only=True):
    pass


RAW_DEPLOYMENTS = ApiResource("apps", "v1", "Deployment", "deployments", RawDeployment)
RAW_SERVICES = ApiResource("", "v1", "Service", "services", RawService)
RAW_NETWORK_POLICIES = ApiResource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", RawNetworkPolicy)


def is_generation_observed(deployment: RawDeployment) -> bool:
    """Whether its status speaks of what was last asked of it."""
    return deployment.status.observed_generation >= deployment.metadata.generation


def has_pods(deployment: RawDeployment | None) -> bool:
    """Whether Kubernetes still counts pods of it, ready or not."""
    return deployment is not None and (deployment.status.replicas > 0 or not is_generation_observed(deployment))
