"""The container template, which the specs of GPUUnit and StockPool share."""

from typing import Annotated, ClassVar

from gpu_runtime.contract.crd.markers import CelRule, openapi
from gpu_runtime.contract.crd.well_known import SPEC_NAME_PATTERN
from gpu_runtime.contract.timing import MAX_TERMINATION_GRACE_SECONDS
from gpu_runtime.kube.meta import KubeStruct

ENV_NAME_PATTERN = "^[-._a-zA-Z][-._a-zA-Z0-9]*$"
MAX_ENV_NAME_LENGTH = 255
MAX_ENV_VALUE_LENGTH = 24 * 1024
MAX_TEMPLATE_BYTES = 32 * 1024
"""Maximum size of a template, and of all probes together, as JSON. Four Kubernetes objects of a unit contain them."""
PORT_NAME_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
MAX_PORT_NAME_LENGTH = 15
PORT_PROTOCOLS = ("TCP", "UDP", "SCTP")

SpecName = Annotated[str, openapi(pattern=SPEC_NAME_PATTERN, maxLength=63)]
Image = Annotated[str, openapi(maxLength=1024)]
Count = Annotated[int, openapi(format="int32", minimum=0, maximum=2**31 - 1)]

# No pattern: the controller reports an invalid quantity in the status of the object, with an explanation.
QuantityString = Annotated[str, openapi(maxLength=64)]

# Every string that a CEL rule reads has a maxLength: the API server computes the cost of a rule from the longest input.
PortName = Annotated[str, openapi(pattern=PORT_NAME_PATTERN, maxLength=MAX_PORT_NAME_LENGTH)]
ContainerArgs = Annotated[tuple[str, ...], openapi(maxItems=256)]
MAX_HTTP_PATH_LENGTH = 1024
HttpPath = Annotated[str, openapi(pattern="^/", maxLength=MAX_HTTP_PATH_LENGTH)]


# The prefix separates the Secrets of users from the Secrets of the platform in the same namespace.
SECRET_NAME_PREFIX = "unit-"  # noqa: S105 - a prefix of names, not a password
SECRET_NAME_PATTERN = "^unit-[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"  # noqa: S105
MAX_SECRET_NAME_LENGTH = 253
SECRET_KEY_PATTERN = "^[-._a-zA-Z0-9]+$"  # noqa: S105
MAX_SECRET_KEY_LENGTH = 253
IMAGE_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
MAX_USER_ID = 2**31 - 1

# With these variables, container runtimes give a container devices that it has not reserved.
DEVICE_VARIABLE_SUFFIX = "_VISIBLE_DEVICES"
DEVICE_VARIABLES = (
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_GDS",
    "NVIDIA_GDRCOPY",
    "NVIDIA_MOFED",
    "NVIDIA_NVSWITCH",
    "ASCEND_RUNTIME_OPTIONS",
)
# Only libraries in the container read these variables. They select among the devices that the container has.
PROCESS_DEVICE_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "XPU_VISIBLE_DEVICES",
    "TPU_VISIBLE_DEVICES",
)

SecretName = Annotated[str, openapi(pattern=SECRET_NAME_PATTERN, maxLength=MAX_SECRET_NAME_LENGTH)]
MountPath = Annotated[str, openapi(pattern="^/[^:]*$", maxLength=512)]
UserID = Annotated[int, openapi(format="int64", minimum=0, maximum=MAX_USER_ID)]


class SecretKey(KubeStruct, frozen=True, kw_only=True):
    """A key of a Secret in the namespace of the unit."""

    name: SecretName
    """The name of the Secret. It must begin with unit-."""

    key: Annotated[str, openapi(pattern=SECRET_KEY_PATTERN, maxLength=MAX_SECRET_KEY_LENGTH)]
    """The key in the Secret. Its value becomes the value of the variable."""


class EnvVarSource(KubeStruct, frozen=True, kw_only=True):
    """Where the value of an environment variable comes from."""

    secret: SecretKey
    """The Secret and the key that contain the value."""


def selects_devices(variable: str) -> bool:
    """Return whether container runtimes select devices by the value of the environment variable with this name."""
    is_selector = variable.endswith(DEVICE_VARIABLE_SUFFIX) and variable not in PROCESS_DEVICE_VARIABLES
    return is_selector or variable in DEVICE_VARIABLES


class EnvVar(KubeStruct, frozen=True, kw_only=True):
    """An environment variable of the container."""

    RULES: ClassVar = (
        CelRule(
            f"!self.name.endsWith('{DEVICE_VARIABLE_SUFFIX}') || self.name in {list(PROCESS_DEVICE_VARIABLES)}",
            "the platform selects the devices of a container: remove this variable, and set gpu",
            "name",
        ),
        CelRule(
            f"!(self.name in {list(DEVICE_VARIABLES)})",
            "the platform selects the devices of a container: remove this variable, and set gpu",
            "name",
        ),
    )

    name: Annotated[str, openapi(pattern=ENV_NAME_PATTERN, maxLength=MAX_ENV_NAME_LENGTH)]
    """The name of the variable. It must be unique in the template. Variables with which container runtimes select
    devices, for example NVIDIA_VISIBLE_DEVICES, are not allowed: the field gpu decides which GPUs the container gets.
    CUDA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES are allowed."""

    value: Annotated[str, openapi(maxLength=MAX_ENV_VALUE_LENGTH)] = ""
    """The value of the variable. As in every Pod, Kubernetes replaces $(NAME) with the value of the variable
    NAME."""

    value_from: EnvVarSource | None = None
    """The source of the value. A variable must not have both value and valueFrom."""


class Port(KubeStruct, frozen=True, kw_only=True):
    """A port on which the container listens."""

    name: PortName
    """The name of the port. The name must be unique in the template. It consists of at most 15 lower-case letters,
    digits and dashes, and contains at least one letter."""

    port: Annotated[int, openapi(format="int32", minimum=1, maximum=65535)]
    """The port number. The container and the Service use the same number."""

    protocol: Annotated[str, openapi(enum=list(PORT_PROTOCOLS))] = "TCP"
    """The protocol of the port: TCP, UDP or SCTP. Defaults to TCP."""


class SecretMount(KubeStruct, frozen=True, kw_only=True):
    """A Secret that the container mounts as files. Each key of the Secret is a file."""

    name: SecretName
    """The name of the Secret. It must begin with unit-."""

    mount_path: MountPath
    """The absolute path of the mount in the container. Two mount paths of a pod must not be equal, and one must not be
    inside the other. This rule also applies to the mount paths of storages."""


def _total_size(strings: str) -> str:
    """Return the CEL expression for the total length of a list of strings, which may be absent."""
    return f"(has({strings}) ? {strings}.map(each, each.size()).sum() : 0)"


class InitCommand(KubeStruct, frozen=True, kw_only=True):
    """A command that runs in the image of the unit before the container starts, each time that the pod starts."""

    RULES: ClassVar = (
        CelRule(
            f"{_total_size('self.command')} + {_total_size('self.args')} <= {MAX_TEMPLATE_BYTES}",
            f"command and args together must have at most {MAX_TEMPLATE_BYTES} characters",
            "",
        ),
    )

    command: ContainerArgs = ()
    """The command. It replaces the entrypoint of the image."""

    args: ContainerArgs = ()
    """The arguments of the command. Without a command, they are the arguments of the entrypoint of the image."""


class Template(KubeStruct, frozen=True, kw_only=True):
    """How the container runs the image."""

    RULES: ClassVar = (
        CelRule(
            "!has(self.ports) || self.ports.all(p,"
            " self.ports.exists_one(q, q.port == p.port && q.protocol == p.protocol))",
            "two items of ports must not have the same port and the same protocol",
            "ports",
        ),
        CelRule(
            f"{_total_size('self.command')} + {_total_size('self.args')}"
            " + (has(self.envs) ? self.envs.map(e, e.name.size() + (has(e.value) ? e.value.size() : 0)).sum() : 0)"
            f" <= {MAX_TEMPLATE_BYTES}",
            f"command, args and envs together must have at most {MAX_TEMPLATE_BYTES} characters: put large data into"
            " the image or a storage",
            "",
        ),
    )

    command: ContainerArgs = ()
    """The command of the container. It replaces the entrypoint of the image."""

    args: ContainerArgs = ()
    """The arguments of the command. Without a command, they are the arguments of the entrypoint of the image."""

    envs: Annotated[
        tuple[EnvVar, ...],
        openapi(maxItems=256, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
    """The environment variables of the container."""

    ports: Annotated[
        tuple[Port, ...],
        openapi(maxItems=32, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
    """The ports on which the container listens. The Service has the same ports."""

    working_dir: Annotated[str, openapi(pattern="^/", maxLength=512)] = ""
    """The working directory of the container, as an absolute path. If this field is empty, the working directory of the
    image applies."""

    init: InitCommand | None = None
    """A command that Kubernetes runs before the container starts, in the same image as the container. The command has
    the environment variables, storages, GPUs and limits of the container. If the command fails, the container does not
    start, and the Ready condition reports the failure."""

    shared_memory: QuantityString = ""
    """The size of /dev/shm, for example 8Gi. The files in /dev/shm count as memory of the container, so the size must
    not be greater than spec.memory. If this field is empty, /dev/shm has the default size of the container runtime, 64
    MiB."""

    run_as_user: UserID | None = None
    """The user ID of the container's processes. If this field is absent, the image decides the user ID."""

    run_as_group: UserID | None = None
    """The group ID of the container's processes. If this field is absent, the image decides the group ID."""

    fs_group: UserID | None = None
    """The group ID of the files in storages. When Kubernetes mounts a storage whose root directory has another group,
    Kubernetes changes the group of all files in the storage."""

    termination_grace_period_seconds: (
        Annotated[int, openapi(format="int64", minimum=1, maximum=MAX_TERMINATION_GRACE_SECONDS)] | None
    ) = None
    """The time in seconds between SIGTERM and SIGKILL when the pod stops. Defaults to 30 for units and to 2 for stock
    pools. The setting pods.maxTerminationGracePeriodSeconds is the maximum. The pod of a worker gets at least
    serverless.sidecar.drainTimeoutSeconds plus 15 seconds, even if this field is lower."""

    image_pull_policy: Annotated[str, openapi(enum=list(IMAGE_PULL_POLICIES))] = ""
    """When the node pulls the image: Always, IfNotPresent or Never. If imagePullSecrets is given, the default is
    Always, so that the registry checks the credentials for every pod. Otherwise, the default is IfNotPresent."""

    image_pull_secrets: Annotated[tuple[SecretName, ...], openapi(maxItems=8)] = ()
    """The names of the Secrets with the credentials of image registries. Each name must begin with unit-."""

    secret_mounts: Annotated[
        tuple[SecretMount, ...],
        openapi(maxItems=16, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
    """The Secrets that the container mounts as files."""
