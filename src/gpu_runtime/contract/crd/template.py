"""What runs inside a unit or a pool: the part of the spec that both kinds share."""

from typing import Annotated, ClassVar

from gpu_runtime.contract.crd.markers import CelRule, openapi
from gpu_runtime.contract.crd.well_known import SPEC_NAME_PATTERN
from gpu_runtime.kube.meta import KubeStruct

ENV_NAME_PATTERN = "^[-._a-zA-Z][-._a-zA-Z0-9]*$"
MAX_ENV_NAME_LENGTH = 255
MAX_ENV_VALUE_LENGTH = 32768
PORT_NAME_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
MAX_PORT_NAME_LENGTH = 15
PORT_PROTOCOLS = ("TCP", "UDP", "SCTP")

SpecName = Annotated[str, openapi(pattern=SPEC_NAME_PATTERN, maxLength=63)]
Image = Annotated[str, openapi(maxLength=1024)]
Count = Annotated[int, openapi(format="int32", minimum=0, maximum=2**31 - 1)]

# No pattern: a manually written bad quantity reaches the controller, which explains it in the object's own status.
QuantityString = Annotated[str, openapi(maxLength=64)]

# A limit of its own for every string that a rule reads: the API server prices rules by the longest possible input.
PortName = Annotated[str, openapi(pattern=PORT_NAME_PATTERN, maxLength=MAX_PORT_NAME_LENGTH)]
ContainerArgs = Annotated[tuple[str, ...], openapi(maxItems=256)]


class EnvVar(KubeStruct, frozen=True, kw_only=True):
    """An environment variable of the container."""

    name: Annotated[str, openapi(pattern=ENV_NAME_PATTERN, maxLength=MAX_ENV_NAME_LENGTH)]
    """The variable's name, unique in the template."""

    value: Annotated[str, openapi(maxLength=MAX_ENV_VALUE_LENGTH)] = ""
    """The variable's value. $(NAME) stands for another variable, as in every Pod."""


class Port(KubeStruct, frozen=True, kw_only=True):
    """A port that the container listens on."""

    name: PortName
    """The port's name, unique in the template: at most 15 lower-case letters, digits and dashes, with a letter among
    them."""

    port: Annotated[int, openapi(format="int32", minimum=1, maximum=65535)]
    """The port's number, the same in the container and on the Service."""

    protocol: Annotated[str, openapi(enum=list(PORT_PROTOCOLS))] = "TCP"
    """TCP, UDP or SCTP."""


class Template(KubeStruct, frozen=True, kw_only=True):
    """How the image is run."""

    RULES: ClassVar = (
        CelRule(
            "!has(self.ports) || self.ports.all(p,"
            " self.ports.exists_one(q, q.port == p.port && q.protocol == p.protocol))",
            "ports must differ in number or protocol",
            "ports",
        ),
    )

    command: ContainerArgs = ()
    """The program to run, in place of the image's entrypoint."""

    args: ContainerArgs = ()
    """Arguments for the command, or for the image's entrypoint where no command is given."""

    envs: Annotated[
        tuple[EnvVar, ...],
        openapi(maxItems=256, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
    """Environment variables."""

    ports: Annotated[
        tuple[Port, ...],
        openapi(maxItems=32, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
    """Ports that the container listens on. The Service offers each of them under the same number."""
