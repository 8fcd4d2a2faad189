"""Builders of functions and workers for the unit tests of the activator."""

from typing import Any

from gpu_runtime.activator.autoscaler import ObservedFunction, Worker, WorkerState
from gpu_runtime.contract.crd.function_queue import FunctionQueue, FunctionQueueSpec, FunctionRef
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, GPUUnitStatus, Serverless, StorageMount
from gpu_runtime.contract.crd.well_known import SYSTEM_NAMESPACE, function_queue_name
from gpu_runtime.kube.meta import ObjectMeta

MOUNT = StorageMount(name="models", mount_path="/models")


def unit(name: str, *, worker_of: str = "", phase: str | None = None, mounts: bool = False, **options: Any) -> GPUUnit:
    """Build a unit. `serverless` has fields of spec.serverless, and `pod_uid` is a field of the status.

    All other options are fields of the metadata.
    """
    pod_uid = options.pop("pod_uid", None)
    serverless = Serverless(enabled=True, request_id="f", worker_of=worker_of, **options.pop("serverless", {}))
    annotations = options.pop("annotations", {})
    metadata = ObjectMeta(name=name, namespace="units", uid=f"uid-{name}", annotations=annotations, **options)
    spec = GPUUnitSpec(spec_name="g1.1", serverless=serverless, storage_mounts=(MOUNT,) if mounts else ())
    return GPUUnit(metadata=metadata, spec=spec, status=GPUUnitStatus(phase=phase, pod_uid=pod_uid))


def queue(*workers: GPUUnit) -> FunctionQueue:
    """Build the queue of the function `f`, with these workers."""
    spec = FunctionQueueSpec(
        function_id="id-f",
        request_id="f",
        function=FunctionRef(namespace="units", name="f", uid="uid-f"),
        workers={each.metadata.uid: each.metadata.name for each in workers},
    )
    metadata = ObjectMeta(name=function_queue_name("f"), namespace=SYSTEM_NAMESPACE, uid="uid-queue")
    return FunctionQueue(metadata=metadata, spec=spec)


def worker(slot: int, state: WorkerState = WorkerState.SERVING, idle: float | None = None, **fields: Any) -> Worker:
    return Worker(unit(f"f-w{slot}", worker_of="f"), state, idle, **fields)


def observed(outstanding: int | None, *workers: Worker, mounts: bool = False, **options: Any) -> ObservedFunction:
    """Build an observed function. Options other than `may_create` and `phase` are fields of spec.serverless."""
    may_create, phase = options.pop("may_create", True), options.pop("phase", None)
    return ObservedFunction(unit("f", mounts=mounts, phase=phase, serverless=options), workers, outstanding, may_create)
