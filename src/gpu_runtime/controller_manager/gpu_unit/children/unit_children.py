"""All children of a unit, in the order in which they are made."""

from gpu_runtime.contract.crd.conditions import Reason
from gpu_runtime.controller_manager.gpu_unit.children.deployment import deployment
from gpu_runtime.controller_manager.gpu_unit.children.network_policy import network_policy
from gpu_runtime.controller_manager.gpu_unit.children.service import service
from gpu_runtime.controller_manager.gpu_unit.observe import Observed
from gpu_runtime.controller_manager.workload.apply import Child
from gpu_runtime.controller_manager.workload.unstructured import DEPLOYMENTS, NETWORK_POLICIES, SERVICES


def desired_children(seen: Observed) -> tuple[Child, ...]:
    return (
        # First: no pod is ever reachable where it should not be.
        Child(NETWORK_POLICIES, seen.network_policy, network_policy(seen), Reason.NETWORK_POLICY_SYNC_FAILED),
        Child(DEPLOYMENTS, seen.deployment, deployment(seen), Reason.DEPLOYMENT_SYNC_FAILED),
        Child(SERVICES, seen.service, service(seen), Reason.SERVICE_SYNC_FAILED),
    )
