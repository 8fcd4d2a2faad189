"""Names that several processes must agree on: the API group, namespaces, labels, annotations, and derived names."""

import hashlib
from enum import StrEnum

GROUP = "runtime.lokiwager.io"
VERSION = "v1alpha1"

SYSTEM_NAMESPACE = "runtime-system"
STOCK_NAMESPACE = "runtime-stock"
INSTANCE_NAMESPACE = "runtime-instance"

GPU_RESOURCE = "nvidia.com/gpu"
"""How Kubernetes counts GPUs in a container's resources."""

DEFAULT_STORAGE_CLASS = "rook-ceph-block"

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A DNS-1035 label: a Service carries the object's name, and older Kubernetes takes nothing wider for a Service."""

MAX_NAME_LENGTH = 63
POOL_CHILD_PREFIX = "pool-"
MAX_POOL_NAME_LENGTH = MAX_NAME_LENGTH - len(POOL_CHILD_PREFIX)

SPEC_NAME_PATTERN = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
"""A label value, so that stock can be selected by its flavor."""

REQUEST_ID_PATTERN = "^[a-z0-9_-]+$"
"""One token of a queue subject."""


class UnitRole(StrEnum):
    """What a GPUUnit is for. Placement decides it, never the spec."""

    STOCK = "stock"
    ACTIVE = "active"


class Label:
    """Labels of owned objects. Every Deployment, Pod, Service and claim of the platform carries MANAGED_BY."""

    MANAGED_BY = "app.kubernetes.io/managed-by"
    UNIT = f"{GROUP}/unit"
    UNIT_UID = f"{GROUP}/unit-uid"
    """On pods: a unit of the same name that comes later is another one."""
    STORAGE = f"{GROUP}/storage"
    POOL = f"{GROUP}/pool"
    POOL_UID = f"{GROUP}/pool-uid"
    ROLE = f"{GROUP}/role"
    SPEC_NAME = f"{GROUP}/spec-name"
    NATS_ACCESS = f"{GROUP}/nats-access"
    """On pods that have a worker sidecar: the queue's NetworkPolicy admits them by it."""
    CREATED_HOUR = f"{GROUP}/created-hour"
    """On operations: the hour in which it was recorded, so that old ones are found without reading all."""


class Annotation:
    OPERATION_ID = f"{GROUP}/operation-id"
    """The operation that made the object."""

    OPERATION_UID = f"{GROUP}/operation-uid"
    """That very operation: once it is forgotten, its operationID may come to stand for another one."""

    OPERATION_ATTEMPT = f"{GROUP}/operation-attempt"
    """Which of the operation's attempts it was."""

    REQUEST_HASH = f"{GROUP}/request-hash"
    """The hash of the request that made it."""

    STORAGE_UID = f"{GROUP}/storage-uid"
    """On claims: the storage whose data it holds. With the label it tells whose the claim is, since owner references
    would let garbage collection eat data."""

    CLAIMED_BY = f"{GROUP}/claimed-by"
    """On stock: the operation that is turning it into an active unit."""

    SOURCE_STOCK_NAME = f"{GROUP}/source-stock-name"
    SOURCE_STOCK_NAMESPACE = f"{GROUP}/source-stock-namespace"
    SOURCE_STOCK_UID = f"{GROUP}/source-stock-uid"
    SOURCE_STOCK_NODE = f"{GROUP}/source-stock-node"
    """On an active unit: the stock it was made from, and the node where that stock held its GPUs."""

    RETIRING = f"{GROUP}/retiring"
    """On a worker: its end is decided, and whoever leads brings it about."""


class Finalizer:
    STORAGE_PROTECTION = f"{GROUP}/storage-protection"
    """Keeps a GPUStorage until no unit has it mounted and its claim is deleted."""


MANAGED_BY_VALUE = "gpu-runtime"
MANAGED_BY_SELECTOR = f"{Label.MANAGED_BY}={MANAGED_BY_VALUE}"
"""Selects every object that the platform made: nothing else needs to be watched."""


def role_of(namespace: str, stock_namespace: str = STOCK_NAMESPACE) -> UnitRole:
    return UnitRole.STOCK if namespace == stock_namespace else UnitRole.ACTIVE


def unit_labels(name: str, spec_name: str, role: UnitRole) -> dict[str, str]:
    return _managed_labels(Label.UNIT, name) | {Label.SPEC_NAME: spec_name, Label.ROLE: role.value}


def pool_labels(name: str, spec_name: str) -> dict[str, str]:
    return _managed_labels(Label.POOL, name) | {Label.SPEC_NAME: spec_name}


def storage_labels(name: str) -> dict[str, str]:
    return _managed_labels(Label.STORAGE, name)


def _managed_labels(label: str, name: str) -> dict[str, str]:
    return {Label.MANAGED_BY: MANAGED_BY_VALUE, label: name}


def pool_child_name(pool: str) -> str:
    """The name of a pool's Deployment and Service. A unit's and a storage's children carry its own name."""
    return f"{POOL_CHILD_PREFIX}{pool}"


def operation_name(operation_id: str) -> str:
    """One name for one operationID, whatever characters that has: the API server makes the second writer lose."""
    return f"op-{_digest(operation_id, 40)}"


def generated_pool_name(operation_id: str) -> str:
    """The name of a pool whose request gave none: the same for every retry."""
    return f"stock-{_digest(operation_id, 16)}"


def stock_unit_name(operation_id: str, index: int) -> str:
    """The name of the index-th stock unit that an operation seeds: resuming makes no unit twice."""
    return f"stock-{_digest(operation_id, 16)}-{index}"


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
