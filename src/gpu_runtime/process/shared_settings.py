"""Settings sections that several processes share: logs, health, Kubernetes, leader election, NATS, streams."""

from typing import Annotated, Literal

from msgspec import Meta

from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.subjects import DEFAULT_SUBJECT_PREFIX, SUBJECT_PREFIX_PATTERN
from gpu_runtime.contract.timing import (
    DISPATCH_ACK_WAIT_SECONDS,
    INVOKE_ACK_WAIT_SECONDS,
    RESULT_ACK_WAIT_SECONDS,
    timing_errors,
)
from gpu_runtime.contract.validation.pod_policy import PodPolicy
from gpu_runtime.process.settings import BaseSettings, numbers_by_key

PositiveSeconds = Annotated[float, Meta(gt=0, le=86400)]


class LogSettings(BaseSettings, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that the process logs. The levels in ascending order are debug, info, warning and error."""

    format: Literal["json", "text"] = "json"
    """Format of a log line: json (one object per line) or text."""


class BindAddressSettings(BaseSettings, frozen=True, kw_only=True):
    bind_address: str = ":8081"
    """Address on which the process serves /healthz, /readyz and /metrics, as host:port. If the host is empty, the
    process listens on all interfaces."""

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


WorkerCeiling = Annotated[int, Meta(ge=1, le=10_000)]


class PodPolicySettings(BaseSettings, frozen=True, kw_only=True):
    require_non_root: bool = False
    """Whether users' containers must run as a non-root user. If true, template.runAsUser must not be 0, and the kubelet
    does not start images that run as root. The runtime API and the controller manager must have the same value."""

    max_termination_grace_period_seconds: Annotated[int, Meta(ge=1, le=86400)] = 3600
    """Maximum of template.terminationGracePeriodSeconds. The runtime API and the controller manager must have the same
    value."""

    @property
    def policy(self) -> PodPolicy:
        return PodPolicy(self.require_non_root, self.max_termination_grace_period_seconds)


class KubernetesSettings(BaseSettings, frozen=True, kw_only=True):
    kubeconfig: str = ""
    """Path of the kubeconfig. If the path is empty, the process uses the first of these sources that is available: the
    files in $KUBECONFIG, the pod's service account, ~/.kube/config."""

    context: str = ""
    """Context of the kubeconfig. If this setting is empty, the process uses the current context of the kubeconfig. If
    this setting is not empty, the process does not use the pod's service account."""

    request_timeout_seconds: PositiveSeconds = 10
    """Timeout in seconds of each attempt of a request to the Kubernetes API server. The timeout does not apply to
    watches."""


class LeaderElectionSettings(BaseSettings, frozen=True, kw_only=True):
    enabled: bool = True
    """Whether the process does the work of the leader only while it holds the Lease. If false, every replica does the
    work of the leader. So use false only if there is one replica."""

    lease_duration_seconds: PositiveSeconds = 15
    """If the leader has not renewed the Lease for this time in seconds, another replica may acquire the Lease. If the
    leader dies, another replica becomes the leader after this time plus at most 2.5 times retryPeriodSeconds. The value
    must be higher than renewDeadlineSeconds."""

    renew_deadline_seconds: PositiveSeconds = 10
    """Time in seconds after which a leader that cannot renew the Lease stops its work. The value must be higher than
    twice retryPeriodSeconds."""

    retry_period_seconds: PositiveSeconds = 2
    """Time in seconds between two attempts to renew or to acquire the Lease."""


class NatsTLSSettings(BaseSettings, frozen=True, kw_only=True):
    enabled: bool = False
    """Whether the connection must use TLS. A URL that starts with tls:// also requires TLS."""

    ca_file: str = ""
    """Path of a PEM file with the trusted CA certificates. If the path is empty, the process trusts the CA certificates
    of the system."""

    cert_file: str = ""
    """Path of a PEM file with the client certificate. If the path is empty, the process presents no certificate."""

    key_file: str = ""
    """Path of a PEM file with the private key of certFile. If the path is empty, certFile must also contain the key."""

    server_name: str = ""
    """Name that the server certificate must contain. If this setting is empty, the certificate must contain the host of
    the URL."""


class StreamSettings(BaseSettings, frozen=True, kw_only=True):
    """Limits and retention of the JetStream streams. Use the same values for every process, because runtime-api,
    activator and result-store apply their own values to the streams when they start."""

    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    """Number of NATS servers that store each message. Set this value to 3 if the NATS cluster has three or more
    servers. The value must not exceed the number of servers."""

    storage: Literal["file", "memory"] = "file"
    """Where NATS stores the messages of the streams. With file, the messages survive a restart of the NATS server. With
    memory, a restart loses all accepted invocations."""

    max_messages_per_subject: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    """Maximum number of messages of one function in the streams INVOKE and DISPATCH together. When a function has
    reached the limit, the API rejects further invocations of this function with 429. Each of the two streams also
    rejects messages of the function above this number."""

    max_stream_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 2 * 1024**3
    """Maximum size in bytes of each of the streams DISPATCH and RESULT, for all functions together. The stream INVOKE
    has half of this size. A full stream rejects new messages. The messages of one function can use at most a fifth of
    the size of DISPATCH. If a function has used its share, the API rejects its invocations with 429."""

    max_payload_bytes: Annotated[int, Meta(ge=1024, le=MAX_PAYLOAD_BYTES)] = MAX_PAYLOAD_BYTES
    """Maximum size in bytes of the payload of an invocation. The sidecar and the result store truncate a longer body of
    a result to this size."""

    record_retention_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 86400
    """Time in seconds for which NATS retains the record of an invocation after the last change of the record. During
    this time, another request with the same invocationID refers to the same invocation."""

    max_record_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 2 * 1024**3
    """Maximum size in bytes of all records of invocations. A record has about 500 bytes. One function can use at most
    two thirds of the bytes that other functions leave free, so one function alone can use 60 % of this size. If a
    function has used its share, the API rejects its new invocations with 429. When all records use 90 % of this size,
    the API rejects the new invocations of all functions. The rest is for the records of accepted invocations. NATS
    reserves this size and the sizes of the streams on its disk."""

    dead_letter_retention_seconds: Annotated[float, Meta(ge=60, le=365 * 86400)] = 7 * 86400
    """Time in seconds for which NATS retains a dead letter."""

    max_dead_letter_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 1024**3
    """Maximum size in bytes of all dead letters together. Above this size, JetStream deletes the oldest dead
    letters."""

    max_dead_letters_per_function: Annotated[int, Meta(ge=1, le=1_000_000)] = 200
    """Maximum number of dead letters of one function for each source stream. Above this number, JetStream deletes the
    oldest dead letters of this function. A dead letter has at most 1 MiB. Choose the number so that one function cannot
    use all of maxDeadLetterBytes."""

    invoke_ack_wait_seconds: PositiveSeconds = INVOKE_ACK_WAIT_SECONDS
    """Ack wait of the INVOKE stream, in seconds. If an activator does not acknowledge an invocation within this time,
    JetStream redelivers the invocation to any replica."""

    dispatch_ack_wait_seconds: PositiveSeconds = DISPATCH_ACK_WAIT_SECONDS
    """Ack wait of the DISPATCH stream, in seconds. If a worker dies, JetStream redelivers its invocations to another
    worker after this time. A live worker extends the ack wait while it runs an invocation. The value must be at least
    three times the heartbeat interval of workers. The time also applies to the workers of a deleted or disabled
    function. Normally, the leading activator drains these workers before it retires them. If the leading activator has
    been connected to NATS for this time and has received no event from such a worker, it retires this worker without a
    drain."""

    result_ack_wait_seconds: PositiveSeconds = RESULT_ACK_WAIT_SECONDS
    """Ack wait of the RESULT stream, in seconds. If the result store does not acknowledge a result within this time,
    JetStream redelivers the result."""

    consumer_inactive_threshold_seconds: Annotated[float, Meta(ge=60, le=365 * 86400)] = 86400
    """If no worker pulls from the JetStream consumer of a function for this time in seconds, NATS deletes the consumer.
    Waiting invocations stay in the stream."""


class NatsSettings(BaseSettings, frozen=True, kw_only=True):
    """Connection to NATS. Set at most one of credentialsFile, user and tokenFile."""

    urls: Annotated[tuple[Annotated[str, Meta(pattern="^(nats|tls)://")], ...], Meta(min_length=1)] = (
        "nats://nats.messaging:4222",
    )
    """URLs of the NATS servers, as nats://host:port or tls://host:port. The process connects to one server that is
    available."""

    credentials_file: str = ""
    """Path of a .creds file with the JWT and the seed of a NATS user. Set at most one of credentialsFile, user and
    tokenFile. The process reads credentialsFile, passwordFile and tokenFile again for every connection, so you can
    rotate the credentials."""

    user: str = ""
    """Name of a NATS user. The process logs in as this user with the password in passwordFile."""

    password_file: str = ""
    """Path of a file with the password of the NATS user nats.user. If passwordFile is set, nats.user must also be
    set."""

    token_file: str = ""
    """Path of a file with an authentication token for NATS."""

    tls: NatsTLSSettings = NatsTLSSettings()
    """TLS of the connection."""

    prefix: Annotated[str, Meta(pattern=SUBJECT_PREFIX_PATTERN, max_length=100)] = DEFAULT_SUBJECT_PREFIX
    """Prefix of all subjects. Stream names start with the same prefix in upper case, with underscores instead of dots.
    Installations that share a NATS account must have different prefixes."""

    request_timeout_seconds: PositiveSeconds = 5
    """Timeout in seconds of a request to NATS. A publish to a stream fails if NATS does not confirm the message within
    this time."""

    streams: StreamSettings = StreamSettings()
    """Limits and retention of the JetStream streams."""

    def __post_init__(self) -> None:
        methods = {"credentialsFile": self.credentials_file, "user": self.user, "tokenFile": self.token_file}
        configured = [name for name, value in methods.items() if value]
        if len(configured) > 1:
            raise ValueError(f"{' and '.join(configured)} are set; set only one of credentialsFile, user and tokenFile")
        if self.password_file and not self.user:
            raise ValueError("passwordFile is set without user; set user, or remove passwordFile")
        if self.tls.key_file and not self.tls.cert_file:
            raise ValueError("tls.keyFile is set without tls.certFile; set tls.certFile, or remove tls.keyFile")


class TicketSettings(BaseSettings, frozen=True, kw_only=True):
    key_file: Annotated[str, Meta(min_length=1)] = "/etc/gpu-runtime-tickets/keys"
    """Path of the file with the keys of invocation tickets. Each line is a key of at least 32 bytes in hexadecimal
    digits, for example the output of openssl rand -hex 32. The file has one key or, during a rotation, two keys. The
    process signs with the first key and accepts tickets of both keys. The process reads the file again when the file
    changes. The runtime API, the activator and the result store must have the same keys."""


class ProcessSettings(BaseSettings, frozen=True, kw_only=True):
    """Settings of every process."""

    log: LogSettings = LogSettings()
    """Level and format of the log lines that the process writes to standard error."""

    health: BindAddressSettings = BindAddressSettings()
    """HTTP server for health checks and metrics."""

    graceful_shutdown_timeout_seconds: PositiveSeconds = 20
    """Time in seconds that the process waits after SIGTERM for work in progress. After this time, the process
    cancels the work and exits with code 1. Set this time lower than terminationGracePeriodSeconds of the pod."""

    def __post_init__(self) -> None:
        if errors := "; ".join(timing_errors(numbers_by_key(self))):
            raise ValueError(errors)
