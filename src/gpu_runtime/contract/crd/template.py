"""What runs inside a unit or a pool: the part of the spec that both kinds share."""

from typing import Annotated, ClassVar

from gpu_runtime.contract.crd.markers import Rule, held
from gpu_runtime.contract.crd.well_known import SPEC_NAME_PATTERN
from gpu_runtime.kube.meta import Wire

ENV_NAME_PATTERN = "^[-._a-zA-Z][-._a-zA-Z0-9]*$"
ENV_NAME_LIMIT = 255
ENV_VALUE_LIMIT = 32768
PORT_NAME_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
PORT_NAME_LIMIT = 15
PROTOCOLS = ("TCP", "UDP", "SCTP")

SpecName = Annotated[str, held(pattern=SPEC_NAME_PATTERN, maxLength=63)]
Image = Annotated[str, held(maxLength=1024)]
Count = Annotated[int, held(format="int32", minimum=0, maximum=2**31 - 1)]

# No pattern: a manually written bad quantity reaches the controller, which explains it in the object's own status.
Quantity = Annotated[str, held(maxLength=64)]

# A limit of its own for every string that a rule reads: the API server prices rules by the longest possible input.
PortName = Annotated[str, held(pattern=PORT_NAME_PATTERN, maxLength=PORT_NAME_LIMIT)]
Words = Annotated[tuple[str, ...], held(maxItems=256)]


class EnvVar(Wire, frozen=True, kw_only=True):
    """An environment variable of the container."""

    name: Annotated[str, held(pattern=ENV_NAME_PATTERN, maxLength=ENV_NAME_LIMIT)]
    """The variable's name, unique in the template."""

    value: Annotated[str, held(maxLength=ENV_VALUE_LIMIT)] = ""
    """The variable's value. $(NAME) stands for another variable, as in every Pod."""


class Port(Wire, frozen=True, kw_only=True):
    """A port that the container listens on."""

    name: PortName
    """The port's name, unique in the template: at most 15 lower-case letters, digits and dashes, with a letter among
    them."""

    port: Annotated[int, held(format="int32", minimum=1, maximum=65535)]
    """The port's number, the same in the container and on the Service."""

    protocol: Annotated[str, held(enum=list(PROTOCOLS))] = "TCP"
    """TCP, UDP or SCTP."""


class Template(Wire, frozen=True, kw_only=True):
    """How the image is run."""

    RULES: ClassVar = (
        Rule(
            "!has(self.ports) || self.ports.all(p,"
            " self.ports.exists_one(q, q.port == p.port && q.protocol == p.protocol))",
            "ports must differ in number or protocol",
            "ports",
        ),
    )

    command: Words = ()
    """The program to run, in place of the image's entrypoint."""

    args: Words = ()
    """Arguments for the command, or for the image's entrypoint where no command is given."""

    envs: Annotated[
        tuple[EnvVar, ...],
        held(maxItems=256, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
    """Environment variables."""

    ports: Annotated[
        tuple[Port, ...],
        held(maxItems=32, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
    """Ports that the container listens on. The Service offers each of them under the same number."""
