"""Sections of settings that several processes have."""

from typing import Annotated, Literal

from msgspec import Meta

from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.subjects import DEFAULT_SUBJECT_PREFIX, SUBJECT_PREFIX_PATTERN
from gpu_runtime.process.settings import BaseSettings

PositiveSeconds = Annotated[float, Meta(gt=0, le=86400)]


class LogSettings(BaseSettings, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least serious lines that are written: debug, info, warning or error."""

    format: Literal["json", "text"] = "json"
    """json for one object per line, text for people."""


class BindAddressSettings(BaseSettings, frozen=True, kw_only=True):
    bind_address: str = ":8081"
    """Where /healthz, /readyz and /metrics listen, as host:port. Without a host: on every interface."""

    def __post_init__(self) -> None:
        host, colon, port = self.bind_address.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
            raise ValueError(
                f"bind is {self.bind_address!r}; expected host:port, for example 127.0.0.1:8081 or [::1]:8081"
            )

    @property
    def host(self) -> str | None:
        return self.bind_address.rpartition(":")[0].strip("[]") or None

    @property
    def port(self) -> int:
        return int(self.bind_address.rpartition(":")[2])


class KubernetesSettings(BaseSettings, frozen=True, kw_only=True):
    kubeconfig: str = ""
    """The kubeconfig to use. Empty: the one of $KUBECONFIG, else the pod's own service account, else ~/.kube/config."""

    context: str = ""
    """The context of the kubeconfig. Empty: its current one."""

    request_timeout_seconds: PositiveSeconds = 10
    """How long one attempt of a request may take. Watches last longer."""


class LeaderElectionSettings(BaseSettings, frozen=True, kw_only=True):
    enabled: bool = True
    """Whether to wait for the lead before working. Switch it off only where there can be no second process."""

    lease_duration_seconds: PositiveSeconds = 15
    """How long a standby waits for a leader that says nothing: the longest pause when a leader dies."""

    renew_deadline_seconds: PositiveSeconds = 10
    """How long a leader works on without having renewed its lease."""

    retry_period_seconds: PositiveSeconds = 2
    """The time between attempts to renew the lease or to take it over."""

    def __post_init__(self) -> None:
        if not 2 * self.retry_period_seconds < self.renew_deadline_seconds < self.lease_duration_seconds:
            raise ValueError(
                "leaseDurationSeconds must be longer than renewDeadlineSeconds, and that longer than twice retryPeriodSeconds"
            )


class NatsTLSSettings(BaseSettings, frozen=True, kw_only=True):
    enabled: bool = False
    """Whether to refuse a server that offers no TLS. An address with tls:// switches it on, too."""

    ca_file: str = ""
    """The authorities to trust, as PEM. Empty: the machine's own."""

    cert_file: str = ""
    """The certificate that this process shows, as PEM. Empty: none."""

    key_file: str = ""
    """Its key."""

    server_name: str = ""
    """What the server's certificate must say. Empty: the host of the address."""


class StreamSettings(BaseSettings, frozen=True, kw_only=True):
    """What the streams keep. It is the same for every process: each makes the streams so when it starts."""

    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    """How many servers keep each message. 3 on a cluster of three or more; never more than there are servers."""

    storage: Literal["file", "memory"] = "file"
    """Where: file survives a restart of the server, memory does not, and then what was accepted is lost with it."""

    max_messages_per_subject: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    """How many invocations of one function each queue holds: those accepted, and those dispatched. When the first is
    full, one more is answered with 429."""

    max_stream_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 2 * 1024**3
    """How much each queue holds, of all functions together."""

    max_payload_bytes: Annotated[int, Meta(ge=1024, le=MAX_PAYLOAD_BYTES)] = MAX_PAYLOAD_BYTES
    """The largest body of an invocation and of a result."""

    record_retention_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 86400
    """How long an invocation is remembered after its last change: for so long its invocationID means this one."""

    dead_letter_retention_seconds: Annotated[float, Meta(ge=60, le=365 * 86400)] = 7 * 86400
    """How long dead letters are kept."""

    max_dead_letter_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 1024**3
    """How much is kept of them. Beyond that the oldest go first."""

    invoke_ack_wait_seconds: PositiveSeconds = 30
    """After how long an invocation that an activator took and did not settle goes to another."""

    dispatch_ack_wait_seconds: PositiveSeconds = 15
    """After how long the work of a worker that died goes to another. A living worker extends it."""

    result_ack_wait_seconds: PositiveSeconds = 30
    """After how long a result that a result store took and did not store goes to another."""

    consumer_inactive_threshold_seconds: Annotated[float, Meta(ge=60, le=365 * 86400)] = 86400
    """After how long without any worker the server forgets a function's consumer. What waits is kept."""


class NatsSettings(BaseSettings, frozen=True, kw_only=True):
    """How NATS is reached. At most one of credentialsFile, user and tokenFile says who this process is."""

    urls: Annotated[tuple[Annotated[str, Meta(pattern="^(nats|tls)://")], ...], Meta(min_length=1)] = (
        "nats://nats.messaging:4222",
    )
    """The servers, as nats://host:port or tls://host:port. One that answers is enough."""

    credentials_file: str = ""
    """A .creds file with a user's JWT and seed. This file and the next two are read at every connection."""

    user: str = ""
    """The user to log in as."""

    password_file: str = ""
    """A file with the user's password."""

    token_file: str = ""
    """A file with a token to log in with."""

    tls: NatsTLSSettings = NatsTLSSettings()
    """How the connection is encrypted."""

    prefix: Annotated[str, Meta(pattern=SUBJECT_PREFIX_PATTERN, max_length=100)] = DEFAULT_SUBJECT_PREFIX
    """What all subjects begin with, and in capitals all names of streams: two installations differ in it."""

    request_timeout_seconds: PositiveSeconds = 5
    """How long one answer may take, and how long a message may take to be stored."""

    streams: StreamSettings = StreamSettings()
    """What the streams keep."""

    def __post_init__(self) -> None:
        ways = {"credentialsFile": self.credentials_file, "user": self.user, "tokenFile": self.token_file}
        given = [name for name, value in ways.items() if value]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; say in one way who this process is")
        if self.password_file and not self.user:
            raise ValueError("passwordFile is given without user")
        if self.tls.key_file and not self.tls.cert_file:
            raise ValueError("tls.keyFile is given without tls.certFile")


class ProcessSettings(BaseSettings, frozen=True, kw_only=True):
    """What the settings of every process have."""

    log: LogSettings = LogSettings()
    """What is written to standard error."""

    health: BindAddressSettings = BindAddressSettings()
    """Health and metrics."""

    graceful_shutdown_timeout_seconds: PositiveSeconds = 20
    """How long work in progress may take after SIGTERM. Keep it below the pod's termination grace period."""
