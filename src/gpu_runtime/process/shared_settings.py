"""Settings sections that several processes share: logs, health, Kubernetes, leader election, NATS, streams."""

from typing import Annotated, Literal

from msgspec import Meta

from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.subjects import DEFAULT_SUBJECT_PREFIX, SUBJECT_PREFIX_PATTERN
from gpu_runtime.process.settings import BaseSettings

PositiveSeconds = Annotated[float, Meta(gt=0, le=86400)]


class LogSettings(BaseSettings, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged: debug, info, warning or error."""

    format: Literal["json", "text"] = "json"
    """Format of a log line: json (one object per line) or text."""


class BindAddressSettings(BaseSettings, frozen=True, kw_only=True):
    bind_address: str = ":8081"
    """Address on which the process serves /healthz, /readyz and /metrics, as host:port. Without a host it listens on
    all interfaces."""

    def __post_init__(self) -> None:
        host, colon, port = self.bind_address.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
            raise ValueError(
                f"bindAddress is {self.bind_address!r}; expected host:port, for example 127.0.0.1:8081 or [::1]:8081"
            )

    @property
    def host(self) -> str | None:
        return self.bind_address.rpartition(":")[0].strip("[]") or None

    @property
    def port(self) -> int:
        return int(self.bind_address.rpartition(":")[2])


class KubernetesSettings(BaseSettings, frozen=True, kw_only=True):
    kubeconfig: str = ""
    """Path of the kubeconfig. Empty: the files in $KUBECONFIG, else the pod's service account, else ~/.kube/config."""

    context: str = ""
    """Context of the kubeconfig. Empty: its current context."""

    request_timeout_seconds: PositiveSeconds = 10
    """Timeout of one attempt of a request to the API server. It does not apply to watches."""


class LeaderElectionSettings(BaseSettings, frozen=True, kw_only=True):
    enabled: bool = True
    """Whether the process works only while it holds the Lease. Set it to false only if there is a single replica."""

    lease_duration_seconds: PositiveSeconds = 15
    """How long a standby waits before it acquires a Lease that the leader does not renew. This is the longest
    interruption after a leader has died. It must be longer than renewDeadlineSeconds."""

    renew_deadline_seconds: PositiveSeconds = 10
    """How long a leader continues without a successful renewal of the Lease. Then it stops its work. It must be longer
    than twice retryPeriodSeconds."""

    retry_period_seconds: PositiveSeconds = 2
    """Time between attempts to renew or to acquire the Lease."""

    def __post_init__(self) -> None:
        if not 2 * self.retry_period_seconds < self.renew_deadline_seconds < self.lease_duration_seconds:
            raise ValueError(
                "leaseDurationSeconds must be longer than renewDeadlineSeconds, "
                "and renewDeadlineSeconds must be longer than twice retryPeriodSeconds"
            )


class NatsTLSSettings(BaseSettings, frozen=True, kw_only=True):
    enabled: bool = False
    """Whether the connection requires TLS. A URL that starts with tls:// also requires it."""

    ca_file: str = ""
    """File with the trusted CA certificates as PEM. Empty: the certificate authorities of the system."""

    cert_file: str = ""
    """File with the client certificate as PEM. Empty: the process presents no certificate."""

    key_file: str = ""
    """File with the private key of certFile as PEM. Empty: certFile contains the key."""

    server_name: str = ""
    """Name that the server certificate must have. Empty: the host of the URL."""


class StreamSettings(BaseSettings, frozen=True, kw_only=True):
    """Limits and retention of the JetStream streams. Use the same values for every process, because each process
    creates or updates the streams with its own values when it starts."""

    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    """Number of NATS servers that store each message. Use 3 on a NATS cluster of three or more servers. It must not
    exceed the number of servers."""

    storage: Literal["file", "memory"] = "file"
    """Storage of the streams. file survives a restart of the NATS server. With memory, a restart loses all accepted
    invocations."""

    max_messages_per_subject: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    """Maximum number of waiting invocations of one function, in the stream of accepted and in the stream of dispatched
    invocations each. When the first stream has reached the limit, the API rejects further invocations with 429."""

    max_stream_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 2 * 1024**3
    """Maximum size of each stream of invocations or results, for all functions together. A full stream rejects new
    messages."""

    max_payload_bytes: Annotated[int, Meta(ge=1024, le=MAX_PAYLOAD_BYTES)] = MAX_PAYLOAD_BYTES
    """Maximum size of the payload of an invocation, and of a result."""

    record_retention_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 86400
    """How long the record of an invocation is retained after its last change. During this time another request with the
    same invocationID refers to this invocation."""

    dead_letter_retention_seconds: Annotated[float, Meta(ge=60, le=365 * 86400)] = 7 * 86400
    """How long dead letters are retained."""

    max_dead_letter_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 1024**3
    """Maximum size of all dead letters. Above this, JetStream deletes the oldest ones."""

    invoke_ack_wait_seconds: PositiveSeconds = 30
    """Ack wait of accepted invocations. If an activator does not acknowledge an invocation within this time, JetStream
    redelivers it, perhaps to another replica."""

    dispatch_ack_wait_seconds: PositiveSeconds = 15
    """Ack wait of dispatched invocations. If a worker dies, JetStream redelivers its invocations to another worker
    after this time. A live worker extends the ack wait while it runs an invocation."""

    result_ack_wait_seconds: PositiveSeconds = 30
    """Ack wait of results. If a result store does not store a result within this time, JetStream redelivers it, perhaps
    to another replica."""

    consumer_inactive_threshold_seconds: Annotated[float, Meta(ge=60, le=365 * 86400)] = 86400
    """How long the JetStream consumer of a function exists without a worker that pulls from it. Then NATS deletes the
    consumer. Waiting invocations stay in the stream."""


class NatsSettings(BaseSettings, frozen=True, kw_only=True):
    """Connection to NATS. Set at most one of credentialsFile, user and tokenFile."""

    urls: Annotated[tuple[Annotated[str, Meta(pattern="^(nats|tls)://")], ...], Meta(min_length=1)] = (
        "nats://nats.messaging:4222",
    )
    """URLs of the NATS servers, as nats://host:port or tls://host:port. The process connects to an available one."""

    credentials_file: str = ""
    """Path of a .creds file with the JWT and the seed of a user. The process reads credentialsFile, passwordFile and
    tokenFile again for every connection."""

    user: str = ""
    """User name for the login with a password."""

    password_file: str = ""
    """File with the password of the user. It requires user."""

    token_file: str = ""
    """File with an authentication token."""

    tls: NatsTLSSettings = NatsTLSSettings()
    """TLS of the connection."""

    prefix: Annotated[str, Meta(pattern=SUBJECT_PREFIX_PATTERN, max_length=100)] = DEFAULT_SUBJECT_PREFIX
    """Prefix of all subjects and, in upper case with underscores, of all stream names. Installations that share a NATS
    account must have different prefixes."""

    request_timeout_seconds: PositiveSeconds = 5
    """Timeout of a request to NATS, and of the storage of a message."""

    streams: StreamSettings = StreamSettings()
    """Limits and retention of the JetStream streams."""

    def __post_init__(self) -> None:
        methods = {"credentialsFile": self.credentials_file, "user": self.user, "tokenFile": self.token_file}
        configured = [name for name, value in methods.items() if value]
        if len(configured) > 1:
            raise ValueError(f"{' and '.join(configured)} are set; set only one of credentialsFile, user and tokenFile")
        if self.password_file and not self.user:
            raise ValueError("passwordFile is set without user")
        if self.tls.key_file and not self.tls.cert_file:
            raise ValueError("tls.keyFile is set without tls.certFile")


class ProcessSettings(BaseSettings, frozen=True, kw_only=True):
    """Settings of every process."""

    log: LogSettings = LogSettings()
    """Log lines on standard error."""

    health: BindAddressSettings = BindAddressSettings()
    """Server for health checks and metrics."""

    graceful_shutdown_timeout_seconds: PositiveSeconds = 20
    """How long work in progress may continue after SIGTERM. Then the process cancels it and exits with code 1. Set it
    lower than terminationGracePeriodSeconds of the pod."""
