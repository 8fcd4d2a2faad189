"""Lists all children of a pool in the order in which they are created."""

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.controller_manager.stock_pool.children.deployment import deployment
from gpu_runtime.controller_manager.stock_pool.children.network_policy import network_policy
from gpu_runtime.controller_manager.stock_pool.children.service import service
from gpu_runtime.controller_manager.stock_pool.observe import ObservedPool
from gpu_runtime.controller_manager.unstructured import RAW_DEPLOYMENTS, RAW_NETWORK_POLICIES, RAW_SERVICES
from gpu_runtime.controller_manager.workload.apply import DesiredChild


def desired_children(observed: ObservedPool) -> tuple[DesiredChild, ...]:
    return (
        # The policies of the namespace exist already, so no client can ever reach a prepared pod.
        DesiredChild(
            RAW_NETWORK_POLICIES,
            observed.network_policy,
            network_policy(observed),
            ReadyReason.NETWORK_POLICY_SYNC_FAILED,
        ),
        DesiredChild(RAW_DEPLOYMENTS, observed.deployment, deployment(observed), ReadyReason.DEPLOYMENT_SYNC_FAILED),
        DesiredChild(RAW_SERVICES, observed.service, service(observed), ReadyReason.SERVICE_SYNC_FAILED),
    )
