"""All children of a pool, in the order in which they are made."""

from gpu_runtime.contract.crd.conditions import Reason
from gpu_runtime.controller_manager.stock_pool.children.deployment import deployment
from gpu_runtime.controller_manager.stock_pool.children.service import service
from gpu_runtime.controller_manager.stock_pool.observe import Observed
from gpu_runtime.controller_manager.workload.apply import Child
from gpu_runtime.controller_manager.workload.unstructured import DEPLOYMENTS, SERVICES


def desired_children(seen: Observed) -> tuple[Child, ...]:
    return (
        Child(DEPLOYMENTS, seen.deployment, deployment(seen), Reason.DEPLOYMENT_SYNC_FAILED),
        Child(SERVICES, seen.service, service(seen), Reason.SERVICE_SYNC_FAILED),
    )
