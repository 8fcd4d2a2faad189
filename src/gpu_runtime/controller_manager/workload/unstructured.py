"""Children as their owner reads them: the spec whole, for comparison with the one that is wanted."""

from typing import Any

import msgspec

from gpu_runtime.kube.builtin_kinds import DeploymentStatus
from gpu_runtime.kube.meta import Object, Resource


class Owned(Object, frozen=True, kw_only=True):
    # No model of it: what a model does not name, or leaves out as a default, could never be compared.
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class Deployment(Owned, frozen=True, kw_only=True):
    status: DeploymentStatus = DeploymentStatus()


class Service(Owned, frozen=True, kw_only=True):
    pass


class NetworkPolicy(Owned, frozen=True, kw_only=True):
    pass


DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments", Deployment)
SERVICES = Resource("", "v1", "Service", "services", Service)
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", NetworkPolicy)


def is_current(deployment: Deployment) -> bool:
    """Whether its status speaks of what was last asked of it."""
    return deployment.status.observed_generation >= deployment.metadata.generation


def has_pods(deployment: Deployment | None) -> bool:
    """Whether Kubernetes still counts pods of it, ready or not."""
    return deployment is not None and (deployment.status.replicas > 0 or not is_current(deployment))
