"""Normalization of specs: specs with the same meaning become equal, so that retries have the same request hash."""

from typing import Any

from msgspec.structs import replace

from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.crd.gpu_unit import Access, GPUUnitSpec
from gpu_runtime.contract.crd.reservation import RESERVATION_FIELDS, Reservation
from gpu_runtime.contract.crd.stock_pool import StockPoolSpec
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import DEFAULT_STORAGE_CLASS
from gpu_runtime.contract.validation.mounts import normalize_path
from gpu_runtime.kube.quantity import canonical_quantity


def normalize_unit(spec: GPUUnitSpec) -> GPUUnitSpec:
    mounts = tuple(replace(mount, mount_path=normalize_path(mount.mount_path)) for mount in spec.storage_mounts)
    return replace(
        spec,
        image=spec.image.strip(),
        **normalize_reservation(spec),
        template=normalize_template(spec.template),
        access=normalize_access(spec.access),
        storage_mounts=mounts,
    )


def normalize_pool(spec: StockPoolSpec) -> StockPoolSpec:
    return replace(
        spec,
        image=spec.image.strip(),
        **normalize_reservation(spec),
        template=normalize_template(spec.template),
        access=normalize_access(spec.access),
    )


def normalize_storage(spec: GPUStorageSpec) -> GPUStorageSpec:
    return replace(
        spec,
        size=canonical_quantity(spec.size),
        storage_class_name=spec.storage_class_name or DEFAULT_STORAGE_CLASS,
    )


def normalize_reservation(reserved: Reservation) -> dict[str, Any]:
    """Return the fields of the reservation with their quantities in canonical form."""
    fields = {name: getattr(reserved, name) for name in RESERVATION_FIELDS}
    return {name: canonical_quantity(value) if isinstance(value, str) else value for name, value in fields.items()}


def normalize_access(access: Access | None) -> Access | None:
    normalized = access and replace(access, scheme=access.scheme.lower())
    return None if normalized == Access() else normalized


def normalize_template(template: Template) -> Template:
    ports = tuple(replace(port, protocol=(port.protocol or "TCP").upper()) for port in template.ports)
    return replace(template, ports=ports, shared_memory=canonical_quantity(template.shared_memory))
