"""Child objects with an unstructured spec, so that drift detection can compare all fields of the spec."""

from typing import Any

import msgspec

from gpu_runtime.kube.builtin_kinds import DeploymentStatus
from gpu_runtime.kube.meta import ApiResource, KubeObject


class RawObject(KubeObject, frozen=True, kw_only=True):
    # A typed model would hide the fields that it does not define and the fields with default values.
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
    """Return whether the Deployment has pods, or may have pods because its status is not up to date."""
    return deployment is not None and (deployment.status.replicas > 0 or not is_generation_observed(deployment))
