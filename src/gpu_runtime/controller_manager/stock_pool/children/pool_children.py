"""Lists all children of a pool in the order in which they are created."""

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.controller_manager.stock_pool.children.deployment import deployment
from gpu_runtime.controller_manager.stock_pool.children.service import service
from gpu_runtime.controller_manager.stock_pool.observe import ObservedPool
from gpu_runtime.controller_manager.unstructured import RAW_DEPLOYMENTS, RAW_SERVICES
from gpu_runtime.controller_manager.workload.apply import DesiredChild


def desired_children(observed: ObservedPool) -> tuple[DesiredChild, ...]:
    return (
        DesiredChild(RAW_DEPLOYMENTS, observed.deployment, deployment(observed), ReadyReason.DEPLOYMENT_SYNC_FAILED),
        DesiredChild(RAW_SERVICES, observed.service, service(observed), ReadyReason.SERVICE_SYNC_FAILED),
    )
