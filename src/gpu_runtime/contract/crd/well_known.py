"""Names that several processes share: the API group, namespaces, labels, annotations and names of children."""

import hashlib
from datetime import datetime
from enum import StrEnum

GROUP = "runtime.lokiwager.io"
VERSION = "v1alpha1"

SYSTEM_NAMESPACE = "runtime-system"
STOCK_NAMESPACE = "runtime-stock"
INSTANCE_NAMESPACE = "runtime-instance"

GPU_RESOURCE = "nvidia.com/gpu"
"""The name of the extended resource with which Kubernetes counts GPUs."""

STOCK_PRIORITY_CLASS = "gpu-runtime-stock"
ACTIVE_PRIORITY_CLASS = "gpu-runtime-active"
HANDOFF_PRIORITY_CLASS = "gpu-runtime-handoff"
"""The priority of active pods, without preemption."""

DEFAULT_STORAGE_CLASS = "rook-ceph-block"

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A DNS-1035 label. A Service gets the name of the object, and older Kubernetes versions require a DNS-1035 label as
the name of a Service."""

MAX_NAME_LENGTH = 63
POOL_CHILD_PREFIX = "pool-"
MAX_POOL_NAME_LENGTH = MAX_NAME_LENGTH - len(POOL_CHILD_PREFIX)

SPEC_NAME_PATTERN = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
"""Every match is a valid label value, so that a label selector can select stock by flavor."""

REQUEST_ID_PATTERN = "^[a-z0-9_-]+$"
FUNCTION_ID_PATTERN = "^[a-z0-9_-]+$"
"""Every match is a valid token of a NATS subject."""


RESERVED_OPERATION_ID_PREFIX = "gpu-runtime:"
"""The prefix of operationIDs that only the platform chooses. The API rejects requests with such an operationID."""


class UnitRole(StrEnum):
    """Whether a GPUUnit is stock or active. The namespace of the unit determines its role; the spec does not."""

    STOCK = "stock"
    ACTIVE = "active"


class Label:
    """Labels of objects that the platform owns."""

    MANAGED_BY = "app.kubernetes.io/managed-by"
    """On every Deployment, pod, Service, NetworkPolicy and PVC that the platform owns. The value is `gpu-runtime`."""

    UNIT = f"{GROUP}/unit"
    """On the Deployment, pod, Service and NetworkPolicy of a GPUUnit. The value is the name of the unit."""

    UNIT_UID = f"{GROUP}/unit-uid"
    """On the pod of a GPUUnit. The value is the UID of the unit. The UID distinguishes the pods of a deleted unit from
    the pods of a new unit with the same name."""

    STORAGE = f"{GROUP}/storage"
    """On the PersistentVolumeClaim of a GPUStorage. The value is the name of the storage."""

    POOL = f"{GROUP}/pool"
    """On the Deployment, pods and Service of a StockPool. The value is the name of the pool."""

    POOL_UID = f"{GROUP}/pool-uid"
    """On the pods of a StockPool. The value is the UID of the pool."""

    PREPARED = f"{GROUP}/prepared"
    """On the pods of adoptable StockPools, also after a handoff has taken them. The value is `true`."""

    PREPARED_BY = f"{GROUP}/prepared-by"
    """On the pods of adoptable StockPools, until they belong to a GPUUnit. The value is the name of the pool. The
    NetworkPolicy of the pool selects this label, so it also protects a pod that a handoff has claimed."""

    OPERATION_UID = f"{GROUP}/operation-uid"
    """On prepared pods that a handoff has claimed, and on later pods of the same GPUUnit. The value is the UID of the
    Operation. The Service and the NetworkPolicy of such a unit select it."""

    ROLE = f"{GROUP}/role"
    """On the children and the pod of a GPUUnit. The value is the role of the unit, `stock` or `active`."""

    SPEC_NAME = f"{GROUP}/spec-name"
    """On the children and the pods of a GPUUnit or StockPool. The value is the flavor, `spec.specName`."""

    NATS_ACCESS = f"{GROUP}/nats-access"
    """On pods with a worker sidecar. The value is `true`. The NetworkPolicy of NATS admits pods with this label."""

    CREATED_HOUR = f"{GROUP}/created-hour"
    """On Operations. The value is the hour in which the Operation was created, in UTC, for example `2026-01-31T09`. The
    runtime API uses this label to list only old Operations."""


class Annotation:
    OPERATION_ID = f"{GROUP}/operation-id"
    """On GPUUnits and StockPools that an operation created. The value is the operationID of this operation."""

    OPERATION_UID = f"{GROUP}/operation-uid"
    """On GPUUnits and StockPools that an operation created. The value is the UID of the Operation. After this Operation
    is evicted, a new Operation may have the same operationID, but the new Operation has another UID."""

    OPERATION_ATTEMPT = f"{GROUP}/operation-attempt"
    """On active units that a handoff created. The value is the number of the handoff attempt that created the unit."""

    REQUEST_HASH = f"{GROUP}/request-hash"
    """On GPUUnits, StockPools and GPUStorages that an API request created. The value is the hash of this request."""

    STORAGE_UID = f"{GROUP}/storage-uid"
    """On PersistentVolumeClaims. The value is the UID of the GPUStorage that owns the data. A PVC has no owner
    reference. With an owner reference, garbage collection could delete the data."""

    CLAIMED_BY = f"{GROUP}/claimed-by"
    """On stock units and prepared pods. The value is the operationID of the handoff that has claimed them."""

    PREPARED_FOR = f"{GROUP}/prepared-for"
    """On the pods of adoptable StockPools. The value is a hash of the unit that the pods are prepared for. The runtime
    API compares it with the request."""

    POD_HASH = f"{GROUP}/pod-hash"
    """On the pods of adoptable StockPools. The value is a hash of the pod spec. The controller manager compares it with
    the pod spec of the unit."""

    POD_PROFILE = f"{GROUP}/pod-profile"
    """On the Deployments of GPUUnits and StockPools, and on the pods of adoptable StockPools. The value is the version
    of the pod profile with which the platform built the pods. If another client
    changes the annotation, the controller manager corrects it from the status of the GPUUnit or StockPool."""

    ROLL_REQUEST = f"{GROUP}/roll-request"
    """On GPUUnits and StockPools. `gpu-runtime units roll` sets this annotation. When its value changes, the controller
    manager builds the pods with the latest pod profile."""

    GIVEN_WAY_TO = f"{GROUP}/given-way-to"
    """On the Deployments of adoptable StockPools. The value lists the units for which the pool has deleted a pod, as
    `<UID of the unit>=<time>`, separated by commas."""

    SOURCE_STOCK_NAME = f"{GROUP}/source-stock-name"
    """On active units that a handoff created. The value is the name of the stock unit that the handoff consumed."""

    SOURCE_STOCK_NAMESPACE = f"{GROUP}/source-stock-namespace"
    """On active units that a handoff created. The value is the namespace of the stock unit that the handoff
    consumed."""

    SOURCE_STOCK_UID = f"{GROUP}/source-stock-uid"
    """On active units that a handoff created. The value is the UID of the stock unit that the handoff consumed."""

    SOURCE_STOCK_POOL = f"{GROUP}/source-stock-pool"
    """On active units that were created from a prepared pod. The value is the name of its StockPool. The other
    annotations of the source stock name the pod."""

    SOURCE_STOCK_MISSED = f"{GROUP}/source-stock-missed"
    """On active units that were created from a stock unit. The value is the reason why the handoff took no prepared
    pod, for example `image differs`."""

    SOURCE_STOCK_NODE = f"{GROUP}/source-stock-node"
    """On active units that a handoff created. The value is the name of the node on which the pod of the consumed stock
    unit ran. The unit's pod prefers this node."""

    ENDED_RUN = f"{GROUP}/ended-run"
    """On active units. When the lifetime of a unit is over, the controller manager stops the unit and sets this
    annotation. The value is status.startTime of the run that ended. If the unit is started again, a new run begins."""

    RETIRING = f"{GROUP}/retiring"
    """On workers. The leading activator sets this annotation when it has decided to delete the worker. If another
    replica becomes the leader, the new leader continues the deletion."""


class Finalizer:
    STORAGE_PROTECTION = f"{GROUP}/storage-protection"
    """On GPUStorages. When a user deletes a storage, the controller manager first waits until no unit and no pod mounts
    the storage. Then the controller manager deletes the PersistentVolumeClaim of the storage. When the
    PersistentVolumeClaim is deleted, the controller manager removes this finalizer."""


MANAGED_BY_VALUE = "gpu-runtime"
MANAGED_BY_SELECTOR = f"{Label.MANAGED_BY}={MANAGED_BY_VALUE}"
"""Label selector for every object that the platform created. Informers of child objects watch only these objects."""


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
    """Return the name of a pool's Deployment and Service. The children of a unit or storage have the name of their
    owner."""
    return f"{POOL_CHILD_PREFIX}{pool}"


def created_hour(created: datetime) -> str:
    """Return the value of `Label.CREATED_HOUR` for a time in UTC."""
    return created.strftime("%Y-%m-%dT%H")


def operation_name(operation_id: str) -> str:
    """Return the name of the Operation for an operationID. An operationID may contain any characters.

    The same operationID always gives the same name, so the API server rejects a second Operation with the same
    operationID.
    """
    return f"op-{_digest(operation_id, 40)}"


def return_operation_id(unit_uid: str) -> str:
    """Return the operationID of the operation that returns the stock of a worker. Each worker has only one.

    No caller can choose it, so no caller can prevent the return.
    """
    return f"{RESERVED_OPERATION_ID_PREFIX}return-{unit_uid}"


def function_queue_name(request_id: str) -> str:
    """Return the name of the FunctionQueue for a requestID. The API server rejects a second one with this name."""
    return f"fn-{_digest(request_id, 40)}"


def generated_pool_name(operation_id: str) -> str:
    """Return the name of a pool whose request has no name. Every retry of the request gets the same name."""
    return f"stock-{_digest(operation_id, 16)}"


def stock_unit_name(operation_id: str, index: int) -> str:
    """Return the name of a stock unit that an operation seeds.

    A resumed operation computes the same names, so it creates no duplicates.
    """
    return f"stock-{_digest(operation_id, 16)}-{index}"


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
