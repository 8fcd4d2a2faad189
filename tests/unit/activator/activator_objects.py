"""Functions and workers as tests build them."""

from typing import Any

from gpu_runtime.activator.autoscaler import ObservedFunction, Worker, WorkerState
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, GPUUnitStatus, Serverless, StorageMount
from gpu_runtime.kube.meta import ObjectMeta

MOUNT = StorageMount(name="models", mount_path="/models")


def unit(name: str, *, worker_of: str = "", phase: str | None = None, mounts: bool = False, **about: Any) -> GPUUnit:
    serverless = Serverless(enabled=True, request_id="f", worker_of=worker_of, **about.pop("serverless", {}))
    annotations = about.pop("annotations", {})
    metadata = ObjectMeta(name=name, namespace="units", uid=f"uid-{name}", annotations=annotations, **about)
    spec = GPUUnitSpec(spec_name="g1.1", serverless=serverless, storage_mounts=(MOUNT,) if mounts else ())
    return GPUUnit(metadata=metadata, spec=spec, status=GPUUnitStatus(phase=phase))


def worker(slot: int, state: WorkerState = WorkerState.SERVING, idle: float | None = None, **about: Any) -> Worker:
    return Worker(unit(f"f-w{slot}", worker_of="f"), state, idle, **about)


def observed(outstanding: int | None, *workers: Worker, mounts: bool = False, **wants: Any) -> ObservedFunction:
    may_create, phase = wants.pop("may_create", True), wants.pop("phase", None)
    return ObservedFunction(unit("f", mounts=mounts, phase=phase, serverless=wants), workers, outstanding, may_create)
