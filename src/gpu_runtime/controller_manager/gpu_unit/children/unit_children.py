"""Lists all children of a unit in the order in which they are created."""

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.controller_manager.gpu_unit.children.deployment import deployment
from gpu_runtime.controller_manager.gpu_unit.children.network_policy import network_policy
from gpu_runtime.controller_manager.gpu_unit.children.service import service
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.unstructured import RAW_DEPLOYMENTS, RAW_NETWORK_POLICIES, RAW_SERVICES
from gpu_runtime.controller_manager.workload.apply import DesiredChild


def desired_children(observed: ObservedUnit) -> tuple[DesiredChild, ...]:
    return (
        # The policies of the namespace exist already, so no client can reach a pod on a port that the unit does not
        # declare.
        DesiredChild(
            RAW_NETWORK_POLICIES,
            observed.network_policy,
            network_policy(observed),
            ReadyReason.NETWORK_POLICY_SYNC_FAILED,
        ),
        DesiredChild(RAW_DEPLOYMENTS, observed.deployment, deployment(observed), ReadyReason.DEPLOYMENT_SYNC_FAILED),
        DesiredChild(RAW_SERVICES, observed.service, service(observed), ReadyReason.SERVICE_SYNC_FAILED),
    )
