"""GPUUnit: a runtime on reserved GPUs. In the stock namespace it only holds them; elsewhere it runs a user's image."""

from typing import Annotated, ClassVar

from msgspec import field

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.markers import (
    AGE_COLUMN,
    READY_REASON_COLUMN,
    CelRule,
    CrdDefinition,
    PrinterColumn,
    immutable,
    immutable_once_set,
    openapi,
)
from gpu_runtime.contract.crd.template import Count, Image, Port, PortName, QuantityString, SpecName, Template
from gpu_runtime.contract.crd.well_known import GROUP, MAX_NAME_LENGTH, NAME_PATTERN, REQUEST_ID_PATTERN, VERSION
from gpu_runtime.kube.meta import ApiResource, Condition, KubeObject, KubeStruct

ACCESS_SCHEMES = ("http", "https")
MAX_SOCKET_PATH_BYTES = 107
"""Linux takes no longer path for a unix socket."""
MAX_HTTP_PATH_LENGTH = 1024

HttpPath = Annotated[str, openapi(pattern="^/", maxLength=MAX_HTTP_PATH_LENGTH)]


class Access(KubeStruct, frozen=True, kw_only=True):
    """How the unit is reached."""

    primary_port: PortName = ""
    """The name of the template's port that status.accessURL points to. Default: the first port."""

    scheme: Annotated[str, openapi(enum=list(ACCESS_SCHEMES))] = "http"
    """The scheme of status.accessURL: http or https."""


class StorageMount(KubeStruct, frozen=True, kw_only=True):
    """A GPUStorage of the same namespace, mounted into the container."""

    name: Annotated[str, openapi(pattern=NAME_PATTERN, maxLength=MAX_NAME_LENGTH)]
    """The GPUStorage. One storage is mounted by one unit at a time."""

    mount_path: Annotated[str, openapi(pattern="^/[^:]*$", maxLength=512)]
    """Where it appears in the container: an absolute path that neither contains nor lies within another mount."""

    read_only: bool = False
    """Whether the container may only read it."""


class Framework(KubeStruct, frozen=True, kw_only=True):
    """Where the worker's sidecar finds the user's framework: HTTP over a unix socket."""

    socket_path: Annotated[str, openapi(pattern="^/", maxLength=MAX_SOCKET_PATH_BYTES)] = (
        "/run/gpu-runtime/framework.sock"
    )
    """The unix socket that the framework listens on."""

    invoke_path: HttpPath = "/invoke"
    """Where invocations are posted."""

    health_path: HttpPath = "/healthz"
    """Where the framework answers 200 when it can take invocations."""


class Serverless(KubeStruct, frozen=True, kw_only=True):
    """Makes the unit a function: its queue is served by workers that come and go with the load."""

    RULES: ClassVar = (
        CelRule("!self.enabled || has(self.requestID)", "an enabled function needs a requestID", "requestID"),
        CelRule(
            "self.minAvailableCount <= self.maxWorkers",
            "minAvailableCount must not be above maxWorkers",
            "minAvailableCount",
        ),
        immutable_once_set("requestID", "invocations may be waiting in its queue"),
        immutable("workerOf", "a worker of one function never becomes another's"),
    )

    enabled: bool = False
    """Whether invocations are taken."""

    request_id: Annotated[str, openapi(pattern=REQUEST_ID_PATTERN, maxLength=63)] = field(default="", name="requestID")
    """Names the function's queue: lower-case letters, digits, dashes and underscores."""

    min_available_count: Count = 0
    """Workers that are kept ready without any load. 0 scales to zero, once the function's own unit is stopped."""

    max_workers: Annotated[int, openapi(format="int32", minimum=1, maximum=10000)] = 1
    """The most workers there may be at a time."""

    idle_timeout_seconds: Annotated[int, openapi(format="int32", minimum=1, maximum=604800)] = 300
    """How long a worker without work is kept."""

    concurrency: Annotated[int, openapi(format="int32", minimum=1, maximum=1024)] = 1
    """How many invocations a worker takes at a time."""

    framework: Framework = Framework()
    """Where the worker's sidecar finds the user's framework."""

    worker_of: Annotated[str, openapi(maxLength=MAX_NAME_LENGTH)] = ""
    """The unit, in the same namespace, of the function that this unit is a worker of. Empty for the function itself:
    its unit is what workers are made after, and serves the queue, too, while it runs."""


class GPUUnitSpec(KubeStruct, frozen=True, kw_only=True):
    """What the unit reserves and runs."""

    RULES: ClassVar = (
        immutable("specName", "a unit of another flavor is another unit"),
        immutable("gpu", "the GPUs were reserved when the unit was made; create another unit"),
        CelRule(
            "!has(self.access) || !has(self.access.primaryPort) || (has(self.template) && has(self.template.ports)"
            " && self.template.ports.exists(p, p.name == self.access.primaryPort))",
            "access.primaryPort must name a port of the template",
            "access.primaryPort",
        ),
        CelRule(
            "!has(self.storageMounts) || self.storageMounts.all(m,"
            " self.storageMounts.exists_one(n, n.mountPath == m.mountPath))",
            "storageMounts must differ in mountPath",
            "storageMounts",
        ),
        CelRule(
            "!has(self.storageMounts) || self.storageMounts.size() == 0 || !has(self.serverless)"
            " || self.serverless.maxWorkers <= 1",
            "a function with storageMounts has one worker at most: a storage is mounted by one unit at a time",
            "storageMounts",
        ),
        CelRule(
            "!has(oldSelf.serverless) || !has(oldSelf.serverless.requestID) || has(self.serverless)",
            "serverless is not taken away again: invocations may be waiting in its queue; set enabled to false",
            "serverless",
        ),
    )

    spec_name: SpecName
    """The flavor of the unit, for example g1.1: stock of the same flavor can become this unit."""

    image: Image = ""
    """The image that an active unit runs. Stock runs the platform's own image whatever stands here."""

    memory: QuantityString = ""
    """The memory that the unit reserves and may not exceed, for example 16Gi. Empty: no reservation, no limit."""

    gpu: Count = 0
    """How many GPUs the unit holds (nvidia.com/gpu)."""

    template: Template = Template()
    """How the image is run. Without command and args, an active unit runs the image's own entrypoint."""

    access: Access | None = None
    """How the unit is reached."""

    storage_mounts: Annotated[
        tuple[StorageMount, ...],
        openapi(maxItems=16, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
    """Storages that are mounted into the container."""

    serverless: Serverless | None = None
    """Makes the unit a function: its queue is served by workers that come and go with the load."""

    running: bool = True
    """Whether the unit has a pod. false keeps everything else: the Service, the storages, the object."""

    def primary_port(self) -> Port | None:
        """The port that the access URL points to: the one that access names, else the first."""
        if self.access and self.access.primary_port:
            return next((port for port in self.template.ports if port.name == self.access.primary_port), None)
        return next(iter(self.template.ports), None)

    @property
    def serves_function(self) -> bool:
        """Whether its pod takes invocations: a function's own unit or one of its workers."""
        return self.serverless is not None and self.serverless.enabled

    @property
    def is_function(self) -> bool:
        return self.serverless is not None and self.serverless.enabled and not self.serverless.worker_of


class GPUUnitStatus(KubeStruct, frozen=True, kw_only=True):
    """What is true of the unit."""

    phase: Annotated[str, openapi(enum=[phase.value for phase in UnitPhase])] | None = None
    """Empty (stopped), Progressing, Ready or Failed. The Ready condition says why."""

    ready_replicas: Count = 0
    """How many pods of the unit are ready: 0 or 1."""

    observed_generation: Annotated[int, openapi(format="int64")] = 0
    """The generation of the spec that this status speaks of."""

    last_sync_time: Annotated[str, openapi(format="date-time")] | None = None
    """When this status last changed."""

    service_name: str | None = None
    """The Service of an active unit."""

    access_url: str | None = field(default=None, name="accessURL")
    """Where an active unit answers inside the cluster."""

    conditions: tuple[Condition, ...] = ()
    """The Ready condition, with its reason and a message for the operator."""


class GPUUnit(KubeObject, frozen=True, kw_only=True):
    """A runtime on reserved GPUs. In the stock namespace it only holds them, warm; in any other namespace it is active
    and runs a user's image behind a Service."""

    spec: GPUUnitSpec
    status: GPUUnitStatus = GPUUnitStatus()


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
