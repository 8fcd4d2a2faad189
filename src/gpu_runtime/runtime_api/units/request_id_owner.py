"""Checks in the informer caches that no other function has a requestID.

Two requests at the same time can both pass the check. Then only one of the two functions gets a queue, and the
condition of the other function says so.
"""

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.well_known import function_queue_name
from gpu_runtime.contract.errors import DuplicateRequestID
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.api_informers import FUNCTION_INDEX, APIInformers


def require_free_request_id(informers: APIInformers, key: ObjectKey, spec: GPUUnitSpec) -> None:
    """Raise DuplicateRequestID if the unit is a function, and another function has its requestID."""
    if not spec.is_function or spec.serverless is None:
        return
    request_id, queues = spec.serverless.request_id, informers.queues
    queue = queues.store.get(ObjectKey(queues.list_options.namespace, function_queue_name(request_id)))
    if queue is not None and queue.spec.function.key == key:
        return
    others = {unit.metadata.key for unit in informers.units.store.by_index(FUNCTION_INDEX, request_id)} - {key}
    if others:
        names = " and ".join(sorted(map(str, others)))
        raise DuplicateRequestID(f"function {names} has the requestID {request_id!r}; choose another requestID")
