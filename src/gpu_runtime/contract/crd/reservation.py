"""The reservation: the resources of each pod of a unit, stock unit or stock pool.

The reservation is fixed when stock is created. A unit that is created from stock keeps the reservation of the stock
unit.
"""

from typing import Any

from gpu_runtime.contract.crd.template import Count, QuantityString
from gpu_runtime.kube.meta import KubeStruct


class Reservation(KubeStruct, frozen=True, kw_only=True):
    memory: QuantityString = ""
    """The memory of each pod, for example 16Gi. It is both the memory request and the memory limit. If this field is
    empty, the pod has no memory request and no memory limit."""

    gpu: Count = 0
    """The number of GPUs (nvidia.com/gpu) that each pod reserves. Defaults to 0."""

    cpu: QuantityString = ""
    """The CPUs that each pod reserves, for example 4 or 500m. If this field is empty, the pod has no CPU request."""

    cpu_limit: QuantityString = ""
    """The maximum number of CPUs that each pod can use, for example 8. If cpuLimit is given, cpu must also be given.
    cpuLimit must not be less than cpu. If cpuLimit is empty, the pod can use all idle CPUs of its node."""

    ephemeral_storage: QuantityString = ""
    """The disk space of each pod for logs and for files that are not in a storage, for example 20Gi. The value is both
    the request and the limit: Kubernetes evicts a pod that uses more disk space. If this field is empty, the setting
    pods.defaultEphemeralStorage applies."""


RESERVATION_FIELDS = Reservation.__struct_fields__


def reservation_fields(reserved: Reservation) -> dict[str, Any]:
    """Return the reservation of a spec, request or stock unit as the arguments of another one."""
    return {name: getattr(reserved, name) for name in RESERVATION_FIELDS}
