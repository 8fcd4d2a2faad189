"""Whole specs. The API checks a request by the spec it would write, with paths as they stand in the request."""

from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.stock_pool import StockPoolSpec
from gpu_runtime.contract.crd.well_known import Role
from gpu_runtime.contract.validation.field_error import Problem, Problems, under
from gpu_runtime.contract.validation.mounts import mount_problems
from gpu_runtime.contract.validation.serverless import serverless_problems
from gpu_runtime.contract.validation.template_and_access import access_problems, template_problems
from gpu_runtime.contract.validation.values import bytes_problems, count_problems, image_problems, spec_name_problems
from gpu_runtime.kube.quantity import Quantity


def unit_problems(spec: GPUUnitSpec, role: Role, at: str = "") -> tuple[Problem, ...]:
    """What is wrong with a unit. Stock is an envelope: what an active unit would run is not looked at."""
    own = _stock_problems if role is Role.STOCK else _active_problems
    return (*_envelope_problems(spec, at), *own(spec, at))


def pool_problems(spec: StockPoolSpec, at: str = "") -> tuple[Problem, ...]:
    return (
        *_envelope_problems(spec, at),
        *count_problems(spec.replicas, under(at, "replicas")),
        *(image_problems(spec.image, under(at, "image")) if spec.image else ()),
        *template_problems(spec.template, under(at, "template")),
    )


def storage_problems(spec: GPUStorageSpec, at: str = "") -> tuple[Problem, ...]:
    return tuple(_storage_problems(spec, at))


def growth_problems(current: str, wanted: str, at: str = "size") -> Problems:
    """What is wrong with a new size of existing data. A current size that cannot be read forbids nothing."""
    if any(bytes_problems(wanted, at)):
        yield from bytes_problems(wanted, at)
    elif not any(bytes_problems(current, at)) and Quantity(wanted).value < Quantity(current).value:
        yield Problem(at, f"{wanted} is less than the current {current}; a storage only grows")


def _envelope_problems(spec: GPUUnitSpec | StockPoolSpec, at: str) -> Problems:
    yield from spec_name_problems(spec.spec_name, under(at, "specName"))
    if spec.memory:
        yield from bytes_problems(spec.memory, under(at, "memory"))
    yield from count_problems(spec.gpu, under(at, "gpu"))


def _active_problems(spec: GPUUnitSpec, at: str) -> Problems:
    yield from image_problems(spec.image, under(at, "image"))
    yield from template_problems(spec.template, under(at, "template"))
    if spec.access:
        yield from access_problems(spec.access, spec.template.ports, under(at, "access"))
    yield from mount_problems(spec.storage_mounts, under(at, "storageMounts"))
    if spec.serverless:
        yield from serverless_problems(spec.serverless, spec, under(at, "serverless"))


def _stock_problems(spec: GPUUnitSpec, at: str) -> Problems:
    if spec.storage_mounts:
        yield Problem(under(at, "storageMounts"), "stock mounts no storage; mount it in an active unit")
    if spec.is_function:
        yield Problem(under(at, "serverless"), "stock serves no function; enable it in an active unit")


def _storage_problems(spec: GPUStorageSpec, at: str) -> Problems:
    if not spec.size:
        yield Problem(under(at, "size"), "is required; write for example 20Gi")
    else:
        yield from bytes_problems(spec.size, under(at, "size"))
    name = spec.storage_class_name
    if not name or len(name) > 253 or not name.isprintable() or any(map(str.isspace, name)):
        yield Problem(under(at, "storageClassName"), f"{name!r} is not the name of a StorageClass")
