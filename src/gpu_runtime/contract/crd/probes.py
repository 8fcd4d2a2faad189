"""The probes of a unit: how Kubernetes checks whether the program has started, is ready and is alive."""

from typing import Annotated, ClassVar

from gpu_runtime.contract.crd.markers import CelRule, openapi
from gpu_runtime.contract.crd.template import ContainerArgs, HttpPath, PortName
from gpu_runtime.kube.meta import KubeStruct

HTTP_SCHEMES = ("HTTP", "HTTPS")
MAX_PROBE_SECONDS = 3600
MAX_PROBE_FAILURES = 10_000

ProbeSeconds = Annotated[int, openapi(format="int32", minimum=1, maximum=MAX_PROBE_SECONDS)]

_CHECK_COUNT = "[has(self.httpGet), has(self.tcpSocket), has(self.exec)].filter(given, given).size()"


class HTTPGetCheck(KubeStruct, frozen=True, kw_only=True):
    """An HTTP request. The check succeeds if the status of the response is 200 to 399."""

    port: PortName = ""
    """The name of a TCP port in template.ports. Defaults to the primary port. Required if the unit has no primary port,
    or if the primary port is not a TCP port."""

    path: HttpPath = "/"
    """The path of the request. Defaults to /."""

    scheme: Annotated[str, openapi(enum=list(HTTP_SCHEMES))] = "HTTP"
    """The scheme of the request: HTTP or HTTPS. With HTTPS, Kubernetes does not verify the certificate. Defaults to
    HTTP."""


class TCPSocketCheck(KubeStruct, frozen=True, kw_only=True):
    """A TCP connection. The check succeeds if the program accepts it."""

    port: PortName = ""
    """The name of a TCP port in template.ports. Defaults to the primary port. If this field is empty and the unit has
    no primary port, the probe has no effect. The same applies if this field is empty and the primary port is not a TCP
    port."""


class ExecCheck(KubeStruct, frozen=True, kw_only=True):
    """A command in the container. The check succeeds if the command exits with 0."""

    command: ContainerArgs
    """The command and its arguments. No shell interprets them."""


class Probe(KubeStruct, frozen=True, kw_only=True):
    """A check that Kubernetes repeats. Give exactly one of httpGet, tcpSocket and exec."""

    RULES: ClassVar = (CelRule(f"{_CHECK_COUNT} == 1", "give exactly one of httpGet, tcpSocket and exec", ""),)

    http_get: HTTPGetCheck | None = None
    """An HTTP request to the container."""

    tcp_socket: TCPSocketCheck | None = None
    """A TCP connection to the container."""

    exec: ExecCheck | None = None
    """A command in the container."""

    initial_delay_seconds: Annotated[int, openapi(format="int32", minimum=0, maximum=MAX_PROBE_SECONDS)] = 0
    """The time in seconds from the start of the container to the first check. Defaults to 0."""

    period_seconds: ProbeSeconds = 10
    """The time in seconds between two checks. Defaults to 10."""

    timeout_seconds: ProbeSeconds = 1
    """The time in seconds after which a check fails. Defaults to 1."""

    failure_threshold: Annotated[int, openapi(format="int32", minimum=1, maximum=MAX_PROBE_FAILURES)] = 3
    """The number of failed checks in a row after which the probe fails. Defaults to 3."""


class ReadinessProbe(Probe, frozen=True, kw_only=True):
    """A check that decides whether the unit is Ready. Give exactly one of httpGet, tcpSocket, exec and disabled."""

    RULES: ClassVar = (
        CelRule(
            f"{_CHECK_COUNT} + (self.disabled ? 1 : 0) == 1",
            "give exactly one of httpGet, tcpSocket, exec and disabled",
            "",
        ),
    )

    disabled: bool = False
    """If true, the unit has no readiness probe, and the API adds none. Defaults to false."""


class Probes(KubeStruct, frozen=True, kw_only=True):
    """How Kubernetes checks the program in the container."""

    startup: Probe | None = None
    """The startup probe runs until it succeeds once. Then the other probes start. If the startup probe fails,
    Kubernetes restarts the container."""

    readiness: ReadinessProbe | None = None
    """The unit is Ready only while this probe succeeds. A failure does not restart the container. If neither this field
    nor spec.serverless is given, the API adds a readiness probe that opens a TCP connection to the primary port."""

    liveness: Probe | None = None
    """If this probe fails, Kubernetes restarts the container."""


DEFAULT_READINESS_PROBE = ReadinessProbe(tcp_socket=TCPSocketCheck(), period_seconds=1)
"""The probe that the API adds. It names no port, so it follows the primary port when a request changes the ports."""
