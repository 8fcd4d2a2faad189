"""The GPUUnit resource: a runtime on reserved GPUs.

In the stock namespace, a unit only reserves GPUs. In every other namespace, it runs a user's image.
"""

from typing import Annotated, ClassVar

from msgspec import field

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.markers import (
    AGE_COLUMN,
    READY_REASON_COLUMN,
    CelRule,
    ConditionList,
    CrdDefinition,
    PrinterColumn,
    immutable,
    immutable_once_set,
    openapi,
)
from gpu_runtime.contract.crd.pod_record import PodRecord
from gpu_runtime.contract.crd.probes import Probes
from gpu_runtime.contract.crd.reservation import Reservation
from gpu_runtime.contract.crd.template import Count, HttpPath, Image, MountPath, Port, PortName, SpecName, Template
from gpu_runtime.contract.crd.well_known import GROUP, MAX_NAME_LENGTH, NAME_PATTERN, REQUEST_ID_PATTERN, VERSION
from gpu_runtime.kube.meta import ApiResource, KubeObject, KubeStruct

ACCESS_SCHEMES = ("http", "https")
MAX_LIFETIME_SECONDS = 10 * 365 * 86400

LifetimeSeconds = Annotated[int, openapi(format="int32", minimum=1, maximum=MAX_LIFETIME_SECONDS)]
Timestamp = Annotated[str, openapi(format="date-time")]
MAX_SOCKET_PATH_BYTES = 107
"""The maximum length of a Unix socket path on Linux."""


class Access(KubeStruct, frozen=True, kw_only=True):
    """How clients reach the unit."""

    primary_port: PortName = ""
    """The name of a TCP port in template.ports. status.accessURL contains the number of this port. Defaults to the
    first port."""

    scheme: Annotated[str, openapi(enum=list(ACCESS_SCHEMES))] = "http"
    """The scheme of status.accessURL: http or https. Defaults to http."""


class StorageMount(KubeStruct, frozen=True, kw_only=True):
    """A mount of a GPUStorage. The GPUStorage must be in the namespace of the unit."""

    name: Annotated[str, openapi(pattern=NAME_PATTERN, maxLength=MAX_NAME_LENGTH)]
    """The name of the GPUStorage. Only one unit at a time can mount a storage."""

    mount_path: MountPath
    """The absolute path of the mount in the container. Two mount paths of a unit must not be equal, and one must not be
    inside the other. This rule also applies to the mount paths of Secrets."""

    read_only: bool = False
    """Whether the container can only read the storage. Defaults to false."""


class Framework(KubeStruct, frozen=True, kw_only=True):
    """How the worker sidecar calls the user's framework. It sends HTTP requests over a Unix socket."""

    socket_path: Annotated[str, openapi(pattern="^/", maxLength=MAX_SOCKET_PATH_BYTES)] = (
        "/run/gpu-runtime/framework.sock"
    )
    """The path of the Unix socket on which the framework listens."""

    invoke_path: HttpPath = "/invoke"
    """The HTTP path to which the sidecar sends each invocation as a POST request."""

    health_path: HttpPath = "/healthz"
    """The HTTP path of the health check. The framework must return 200 when it can accept invocations."""


class Serverless(KubeStruct, frozen=True, kw_only=True):
    """Makes the unit a serverless function. The activator creates and deletes workers of the function according to the
    load."""

    RULES: ClassVar = (
        CelRule(
            "!self.enabled || has(self.requestID)",
            "requestID is required when enabled is true: set requestID",
            "requestID",
        ),
        CelRule(
            "self.minAvailableCount <= self.maxWorkers",
            "minAvailableCount must not be greater than maxWorkers: lower minAvailableCount or raise maxWorkers",
            "minAvailableCount",
        ),
        immutable_once_set("requestID", "invocations with this requestID may be waiting; create another unit"),
        immutable("workerOf", "a worker cannot become a worker of another function; create another unit"),
    )

    enabled: bool = False
    """Whether the function accepts invocations. Defaults to false."""

    request_id: Annotated[str, openapi(pattern=REQUEST_ID_PATTERN, maxLength=63)] = field(default="", name="requestID")
    """The ID of the function. Callers send this ID in invocation requests as serverlessRequestID. The ID may contain
    only lower-case letters, digits, dashes and underscores, because it is part of NATS subjects. The ID is required if
    enabled is true."""

    min_available_count: Count = 0
    """The minimum number of workers. These workers stay ready even if there are no invocations. Defaults to 0. With 0,
    the activator removes every worker that it created, after the worker has been idle for idleTimeoutSeconds. If the
    function's own unit is stopped, the function then has no worker."""

    max_workers: Annotated[int, openapi(format="int32", minimum=1, maximum=10000)] = 1
    """The maximum number of workers. Defaults to 1."""

    idle_timeout_seconds: Annotated[int, openapi(format="int32", minimum=1, maximum=604800)] = 300
    """The time in seconds after which the activator removes an idle worker that the function does not need. Defaults to
    300."""

    concurrency: Annotated[int, openapi(format="int32", minimum=1, maximum=1024)] = 1
    """The maximum number of invocations that one worker runs concurrently. Defaults to 1."""

    framework: Framework = Framework()
    """How the worker sidecar calls the user's framework."""

    worker_of: Annotated[str, openapi(maxLength=MAX_NAME_LENGTH)] = ""
    """The name of the function's own unit, if the activator created this unit as a worker. Both units are in the same
    namespace. The activator sets this field when it creates a worker from the spec of the function's own unit. In the
    function's own unit, this field is empty. The function's own unit also runs invocations while it is running."""


class GPUUnitSpec(Reservation, frozen=True, kw_only=True):
    """What the unit reserves and runs."""

    RULES: ClassVar = (
        immutable("specName", "the flavor of a unit cannot change; create another unit"),
        immutable("gpu", "the GPUs were reserved when the unit was created; create another unit"),
        CelRule(
            "!has(self.access) || !has(self.access.primaryPort) || (has(self.template) && has(self.template.ports)"
            " && self.template.ports.exists(p, p.name == self.access.primaryPort))",
            "access.primaryPort must be the name of a port in template.ports",
            "access.primaryPort",
        ),
        CelRule(
            "!has(self.storageMounts) || self.storageMounts.all(m,"
            " self.storageMounts.exists_one(n, n.mountPath == m.mountPath))",
            "two items of storageMounts must not have the same mountPath",
            "storageMounts",
        ),
        CelRule(
            "!has(self.storageMounts) || self.storageMounts.size() == 0 || !has(self.serverless)"
            " || self.serverless.maxWorkers <= 1",
            "a function with more than one worker cannot mount a storage: set serverless.maxWorkers to 1 or remove"
            " storageMounts",
            "storageMounts",
        ),
        CelRule(
            "!has(oldSelf.serverless) || !has(oldSelf.serverless.requestID) || has(self.serverless)",
            "serverless cannot be removed, because invocations may be waiting: set serverless.enabled to false",
            "serverless",
        ),
    )

    spec_name: SpecName
    """The flavor of the unit, for example g1.1. An API request that creates a unit consumes a stock unit of the same
    flavor."""

    image: Image = ""
    """The container image of an active unit. A stock unit ignores this field and runs the image of the setting
    images.stock."""

    template: Template = Template()
    """How the container runs the image. Without command and args, an active unit runs the entrypoint of the image."""

    access: Access | None = None
    """How clients reach the unit."""

    probes: Probes | None = None
    """How Kubernetes checks the program in the container."""

    storage_mounts: Annotated[
        tuple[StorageMount, ...],
        openapi(maxItems=16, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
    """The GPUStorages that the container mounts."""

    serverless: Serverless | None = None
    """Makes the unit a serverless function. The activator creates and deletes workers of the function according to the
    load."""

    max_duration_seconds: LifetimeSeconds | None = None
    """The time in seconds after which the platform stops the unit. The time counts from status.firstReadyTime.
    Functions, workers and stock units must not have this field."""

    stop_unless_extended_seconds: LifetimeSeconds | None = None
    """The time in seconds after which the platform stops the unit. The time counts from status.startTime. If
    extendedUntil is later, the platform stops the unit at extendedUntil instead. Functions, workers and stock units
    must not have this field."""

    extended_until: Timestamp | None = None
    """The time until which stopUnlessExtendedSeconds does not stop the unit. The extend request of the API sets this
    field."""

    delete_after_seconds: LifetimeSeconds | None = None
    """The time in seconds after which the platform deletes the unit. The time counts from the creation of the unit. The
    storages of the unit stay. Functions, workers and stock units must not have this field."""

    running: bool = True
    """Whether the unit runs a pod. If false, the platform stops the pod. The GPUUnit, its Service and its attached
    storages stay. Defaults to true."""

    def primary_port(self) -> Port | None:
        """Return the port of the access URL: the port that access.primaryPort names, or else the first port."""
        if self.access and self.access.primary_port:
            return self.port_named(self.access.primary_port)
        return next(iter(self.template.ports), None)

    def port_named(self, name: str) -> Port | None:
        return next((port for port in self.template.ports if port.name == name), None)

    @property
    def serves_function(self) -> bool:
        """Whether the pod of the unit runs invocations. True for the function's own unit and for all other workers."""
        return self.serverless is not None and self.serverless.enabled

    @property
    def is_function(self) -> bool:
        return self.serverless is not None and self.serverless.enabled and not self.serverless.worker_of


class GPUUnitStatus(KubeStruct, frozen=True, kw_only=True):
    """The observed state of the unit."""

    phase: Annotated[str, openapi(enum=[phase.value for phase in UnitPhase])] | None = None
    """Empty (the unit is stopped), Progressing, Ready or Failed. The Ready condition contains the reason."""

    ready_replicas: Count = 0
    """The number of ready pods of the unit: 0 or 1."""

    observed_generation: Annotated[int, openapi(format="int64")] = 0
    """The generation of the spec that this status describes."""

    last_sync_time: Timestamp | None = None
    """The time of the last change of this status."""

    service_name: str | None = None
    """The name of the Service of the unit. Only an active unit with ports has a Service."""

    access_url: str | None = field(default=None, name="accessURL")
    """The URL of the unit inside the cluster. Only an active unit with ports has a URL."""

    start_time: Timestamp | None = None
    """The start of the current run: the time of the creation of the unit, or the time of its last start."""

    first_ready_time: Timestamp | None = None
    """The first time that the unit was Ready in the current run."""

    stops_at: Timestamp | None = None
    """The time at which the platform stops the unit because of maxDurationSeconds or stopUnlessExtendedSeconds. The
    field is absent if the unit is stopped or has neither of these two fields. With only maxDurationSeconds, the field
    is absent until the unit is Ready for the first time."""

    deletes_at: Timestamp | None = None
    """The time at which the platform deletes the unit, if the unit has deleteAfterSeconds."""

    pod: PodRecord | None = None
    """How the platform built the pod of the unit."""

    pod_uid: str | None = field(default=None, name="podUID")
    """The UID of the pod that runs invocations. The activator accepts worker events only from this pod, and sends drain
    requests only to this pod. The field is absent if the unit serves no function or has no pod."""

    conditions: ConditionList = ()
    """The Ready condition, with a reason for programs and a message for people."""


class GPUUnit(KubeObject, frozen=True, kw_only=True):
    """One pod with reserved GPUs. In the stock namespace, a unit only reserves GPUs until a handoff consumes the unit.
    In every other namespace, a unit is active: it runs a user's image, and clients reach it through a Service."""

    spec: GPUUnitSpec
    status: GPUUnitStatus = GPUUnitStatus()


def function_request_ids(unit: GPUUnit) -> tuple[str, ...]:
    """Return the requestID if the unit is a function that is not being deleted, otherwise nothing."""
    function = unit.spec.serverless
    if function is None or not unit.spec.is_function or unit.metadata.deletion_timestamp is not None:
        return ()
    return (function.request_id,)


GPU_UNITS = ApiResource(GROUP, VERSION, "GPUUnit", "gpuunits", GPUUnit)

DEFINITION = CrdDefinition(
    GPU_UNITS,
    short_names=("gu",),
    printer_columns=(
        PrinterColumn("Spec", ".spec.specName"),
        PrinterColumn("GPU", ".spec.gpu", "integer"),
        PrinterColumn("Phase", ".status.phase"),
        READY_REASON_COLUMN,
        PrinterColumn("Memory", ".spec.memory", wide=True),
        PrinterColumn("Image", ".spec.image", wide=True),
        PrinterColumn("URL", ".status.accessURL", wide=True),
        AGE_COLUMN,
    ),
    selectable_fields=(".spec.serverless.requestID",),
)
