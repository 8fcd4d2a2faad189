"""All children of a unit, in the order in which they are made."""

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.controller_manager.gpu_unit.children.deployment import deployment
from gpu_runtime.controller_manager.gpu_unit.children.network_policy import network_policy
from gpu_runtime.controller_manager.gpu_unit.children.service import service
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.workload.apply import DesiredChild
from gpu_runtime.controller_manager.workload.unstructured import RAW_DEPLOYMENTS, RAW_NETWORK_POLICIES, RAW_SERVICES


def desired_children(seen: ObservedUnit) -> tuple[DesiredChild, ...]:
    return (
        # First: no pod is ever reachable where it should not be.
        DesiredChild(
            RAW_NETWORK_POLICIES, seen.network_policy, network_policy(seen), ReadyReason.NETWORK_POLICY_SYNC_FAILED
        ),
        DesiredChild(RAW_DEPLOYMENTS, seen.deployment, deployment(seen), ReadyReason.DEPLOYMENT_SYNC_FAILED),
        DesiredChild(RAW_SERVICES, seen.service, service(seen), ReadyReason.SERVICE_SYNC_FAILED),
    )
