"""Child objects with an unstructured spec, for a complete comparison with the desired spec."""

from typing import Any

import msgspec

from gpu_runtime.kube.builtin_kinds import DeploymentStatus
from gpu_runtime.kube.meta import ApiResource, KubeObject


class RawObject(KubeObject, frozen=True, kw_only=True):
    # Not a typed model: fields that a model lacks, or omits as defaults, could not be compared.
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
    """Return whether the status of the Deployment describes its latest generation."""
    return deployment.status.observed_generation >= deployment.metadata.generation


def has_pods(deployment: RawDeployment | None) -> bool:
    """Return whether the Deployment has pods, ready or not, or may have pods that its status does not report yet."""
    return deployment is not None and (deployment.status.replicas > 0 or not is_generation_observed(deployment))
