"""The container template, which the specs of GPUUnit and StockPool share."""

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

# No pattern: the controller reports an invalid quantity in the status of the object, with an explanation.
QuantityString = Annotated[str, openapi(maxLength=64)]

# Every string that a CEL rule reads has a maxLength: the API server computes the cost of a rule from the longest input.
PortName = Annotated[str, openapi(pattern=PORT_NAME_PATTERN, maxLength=MAX_PORT_NAME_LENGTH)]
ContainerArgs = Annotated[tuple[str, ...], openapi(maxItems=256)]


class EnvVar(KubeStruct, frozen=True, kw_only=True):
    """An environment variable of the container."""

    name: Annotated[str, openapi(pattern=ENV_NAME_PATTERN, maxLength=MAX_ENV_NAME_LENGTH)]
    """The name of the variable. It must be unique in the template."""

    value: Annotated[str, openapi(maxLength=MAX_ENV_VALUE_LENGTH)] = ""
    """The value of the variable. As in every Pod, Kubernetes replaces $(NAME) with the value of the variable
    NAME."""


class Port(KubeStruct, frozen=True, kw_only=True):
    """A port on which the container listens."""

    name: PortName
    """The name of the port. It must be unique in the template. It consists of at most 15 lower-case letters, digits and
    dashes, and contains at least one letter."""

    port: Annotated[int, openapi(format="int32", minimum=1, maximum=65535)]
    """The port number. It is the same in the container and in the Service."""

    protocol: Annotated[str, openapi(enum=list(PORT_PROTOCOLS))] = "TCP"
    """The protocol of the port: TCP, UDP or SCTP. Defaults to TCP."""


class Template(KubeStruct, frozen=True, kw_only=True):
    """How the container runs the image."""

    RULES: ClassVar = (
        CelRule(
            "!has(self.ports) || self.ports.all(p,"
            " self.ports.exists_one(q, q.port == p.port && q.protocol == p.protocol))",
            "two items of ports must not have the same port and the same protocol",
            "ports",
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
