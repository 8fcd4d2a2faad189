"""Validation of reservations: memory, GPUs, CPUs and ephemeral storage."""

from gpu_runtime.contract.crd.reservation import Reservation
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors, child_path
from gpu_runtime.contract.validation.values import bytes_errors, count_errors, cpu_errors
from gpu_runtime.kube.quantity import Quantity


def shared_memory_errors(reserved: Reservation, template: Template, at: str) -> FieldErrors:
    """Yield an error if the shared memory does not fit into the memory. The errors of each value are reported apart."""
    size, memory = template.shared_memory, reserved.memory
    if not size or not memory or any(bytes_errors(size, "")) or any(bytes_errors(memory, "")):
        return
    if Quantity(size).value > Quantity(memory).value:
        text = f"{size} is more than the memory of the pod, which is {memory}; lower sharedMemory"
        yield FieldError(child_path(at, "template.sharedMemory"), text)


def reservation_errors(reserved: Reservation, at: str) -> FieldErrors:
    if reserved.memory:
        yield from bytes_errors(reserved.memory, child_path(at, "memory"))
    yield from count_errors(reserved.gpu, child_path(at, "gpu"))
    if reserved.ephemeral_storage:
        yield from bytes_errors(reserved.ephemeral_storage, child_path(at, "ephemeralStorage"))
    cpu, limit = (
        (value, tuple(cpu_errors(value, child_path(at, field))) if value else ())
        for field, value in (("cpu", reserved.cpu), ("cpuLimit", reserved.cpu_limit))
    )
    yield from (*cpu[1], *limit[1])
    if cpu[1] or limit[1] or not reserved.cpu_limit:
        return
    if not reserved.cpu:
        yield FieldError(child_path(at, "cpuLimit"), "needs cpu; set cpu to the CPUs that the pod reserves")
    elif Quantity(reserved.cpu_limit) < Quantity(reserved.cpu):
        text = f"{reserved.cpu_limit} is less than cpu, which is {reserved.cpu}; raise cpuLimit or lower cpu"
        yield FieldError(child_path(at, "cpuLimit"), text)
