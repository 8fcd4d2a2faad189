"""Sections of settings that several processes have."""

from typing import Annotated, Literal

from msgspec import Meta

from gpu_runtime.process.settings import Settings

Seconds = Annotated[float, Meta(gt=0, le=86400)]


class Log(Settings, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least serious lines that are written: debug, info, warning or error."""

    format: Literal["json", "text"] = "json"
    """json for one object per line, text for people."""


class Endpoints(Settings, frozen=True, kw_only=True):
    bind: str = ":8081"
    """Where /healthz, /readyz and /metrics listen, as host:port. Without a host: on every interface."""

    def __post_init__(self) -> None:
        host, colon, port = self.bind.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
            raise ValueError(f"bind is {self.bind!r}; expected host:port, for example 127.0.0.1:8081 or [::1]:8081")

    @property
    def host(self) -> str | None:
        return self.bind.rpartition(":")[0].strip("[]") or None

    @property
    def port(self) -> int:
        return int(self.bind.rpartition(":")[2])


class Kubernetes(Settings, frozen=True, kw_only=True):
    kubeconfig: str = ""
    """The kubeconfig to use. Empty: the one of $KUBECONFIG, else the pod's own service account, else ~/.kube/config."""

    context: str = ""
    """The context of the kubeconfig. Empty: its current one."""

    request_timeout_seconds: Seconds = 10
    """How long one attempt of a request may take. Watches last longer."""


class LeaderElection(Settings, frozen=True, kw_only=True):
    enabled: bool = True
    """Whether to wait for the lead before working. Switch it off only where there can be no second process."""

    lease_seconds: Seconds = 15
    """How long a standby waits for a leader that says nothing: the longest pause when a leader dies."""

    renew_deadline_seconds: Seconds = 10
    """How long a leader works on without having renewed its lease."""

    retry_seconds: Seconds = 2
    """The time between attempts to renew the lease or to take it over."""

    def __post_init__(self) -> None:
        if not 2 * self.retry_seconds < self.renew_deadline_seconds < self.lease_seconds:
            raise ValueError(
                "leaseSeconds must be longer than renewDeadlineSeconds, and that longer than twice retrySeconds"
            )


class ProcessSettings(Settings, frozen=True, kw_only=True):
    """What the settings of every process have."""

    log: Log = Log()
    """What is written to standard error."""

    endpoints: Endpoints = Endpoints()
    """Health and metrics."""

    stop_grace_seconds: Seconds = 20
    """How long work in progress may take after SIGTERM. Keep it below the pod's termination grace period."""
