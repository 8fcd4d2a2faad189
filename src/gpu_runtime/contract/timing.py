"""Times of several processes that depend on each other: shared defaults, derived times, and rules for the settings.

A worker shows in two ways that it is alive. It extends the ack wait of its invocations, which JetStream observes. It
sends heartbeats, which the activator observes. A live worker gives each of these signs at least three times within
`nats.streams.dispatchAckWaitSeconds`. After this time without a sign, JetStream redelivers the invocations of the
worker. An activator that has started this time ago and has received no event may remove the worker without a drain.

A process checks TIMING_RULES when it reads its settings. The settings of one process do not contain all times: the
controller manager sets the heartbeat interval, and the activator must know it. So the sidecar sends the interval in its
events. Nothing here reads a clock.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

HEARTBEAT_SECONDS = 5.0
MAX_HEARTBEAT_SECONDS = 60.0
"""The longest heartbeat interval that a worker may use or claim.

The activator trusts a worker for a multiple of the interval in its last event. So an event with a longer interval is
malformed.
"""
INVOKE_ACK_WAIT_SECONDS = 30.0
DISPATCH_ACK_WAIT_SECONDS = 15.0
RESULT_ACK_WAIT_SECONDS = 30.0
DRAIN_TIMEOUT_SECONDS = 300.0
MAX_TERMINATION_GRACE_SECONDS = 86400
"""The longest terminationGracePeriodSeconds of a template."""

HEARTBEATS_PER_TIMEOUT = 3
"""A lost heartbeat followed by a late one does not make a worker silent."""
HEARTBEATS_PER_CAPACITY_TTL = 2.4
"""One lost heartbeat does not end the validity of a capacity. The fraction is the time for a late heartbeat."""

WORKER_DEADLINE_GRACE_SECONDS = 0.5
"""Time that a sidecar waits after the deadline, so that the framework can report the timeout itself.

The reaper must wait longer (`reaping.deadlineGraceSeconds`). Otherwise it would end the invocation first.
"""
TAKEOVER_GRACE_SECONDS = 2
"""Time after the deadline in which only the worker that runs an invocation ends it.

After this time, another worker that receives the message may end it. For the reaper, this is the default of
`reaping.deadlineGraceSeconds`.
"""

SIDECAR_SHUTDOWN_TIMEOUT_SECONDS = 5
"""This timeout can be short: the kubelet stops the sidecar after the user's container, when no invocation runs."""
EXTRA_TERMINATION_GRACE_SECONDS = 15
"""Time after the drain timeout, in which first the user's container and then the sidecar exit."""

MIN_QUEUE_EXPIRY_GRACE_SECONDS = 30.0
"""The clocks of the runtime API, the activator and the workers differ by less than this time."""


def heartbeat_timeout(heartbeat_seconds: float) -> float:
    """Return after how many seconds without an event a worker with this heartbeat interval is silent."""
    return HEARTBEATS_PER_TIMEOUT * heartbeat_seconds


def capacity_ttl(heartbeat_seconds: float) -> float:
    """Return for how many seconds a capacity is valid that a worker with this heartbeat interval reported."""
    return HEARTBEATS_PER_CAPACITY_TTL * heartbeat_seconds


def termination_grace(drain_timeout_seconds: float) -> int:
    """Return the terminationGracePeriodSeconds of the pod of a worker."""
    return round(drain_timeout_seconds) + EXTRA_TERMINATION_GRACE_SECONDS


def queue_expiry_grace(invoke_ack_wait_seconds: float) -> timedelta:
    """Return how long after the deadline the runtime API may end an invocation that no other process has ended.

    If an activator dies, JetStream redelivers the invocation after the ack wait, and another activator ends it.
    """
    return timedelta(seconds=max(MIN_QUEUE_EXPIRY_GRACE_SECONDS, invoke_ack_wait_seconds))


def sync_wait_limit(max_sync_wait_seconds: float, request_timeout_seconds: float) -> float:
    """Return how long the runtime API waits for the result of a synchronous invocation.

    The rest of the request timeout is for the work before and after the wait.
    """
    return min(max_sync_wait_seconds, 0.9 * request_timeout_seconds)


def kube_attempt_timeout(kubernetes_timeout_seconds: float, request_timeout_seconds: float) -> float:
    """Return the timeout of one attempt of a Kubernetes request whose HTTP caller is waiting.

    It is a small share of the request timeout, because one HTTP request needs several Kubernetes requests.
    """
    return min(kubernetes_timeout_seconds, 0.1 * request_timeout_seconds)


@dataclass(frozen=True)
class TimingRule:
    """One setting must be at least, or more than, a multiple of another setting of the same process.

    The keys are paths in the settings file. A process has the rule if its settings have both keys.
    """

    shorter: str
    longer: str
    reason: str
    factor: float = 1
    strict: bool = False

    def violation(self, values: Mapping[str, float]) -> str | None:
        """Return an error that names both keys, or None if the values satisfy the rule or a key is absent."""
        if self.shorter not in values or self.longer not in values:
            return None
        short, long = self.factor * values[self.shorter], values[self.longer]
        if long > short or (long == short and not self.strict):
            return None
        return f"{self.longer} is {long:g} and {self.shorter} is {values[self.shorter]:g}; {self.requirement}"

    @property
    def requirement(self) -> str:
        relation = "must be longer than" if self.strict else "must be at least"
        multiple = "" if self.factor == 1 else f"{self.factor:g} times "
        return f"{self.longer} {relation} {multiple}{self.shorter}, because {self.reason}"


_HEARTBEAT_REASON = "otherwise late heartbeats could make the activator retire a worker that is alive"
_SILENT_WORKER_REASON = "the activator must not replace a worker before JetStream redelivers its invocations"
_BACKOFF_REASON = "otherwise the first delay would exceed the maximum"

TIMING_RULES = (
    TimingRule(
        "serverless.sidecar.heartbeatSeconds",
        "serverless.nats.streams.dispatchAckWaitSeconds",
        _HEARTBEAT_REASON,
        factor=HEARTBEATS_PER_TIMEOUT,
    ),
    TimingRule(
        "heartbeatSeconds", "nats.streams.dispatchAckWaitSeconds", _HEARTBEAT_REASON, factor=HEARTBEATS_PER_TIMEOUT
    ),
    TimingRule("nats.streams.dispatchAckWaitSeconds", "scaling.workerLivenessTimeoutSeconds", _SILENT_WORKER_REASON),
    TimingRule("nats.streams.dispatchAckWaitSeconds", "scaling.failedWorkerGraceSeconds", _SILENT_WORKER_REASON),
    TimingRule("scaling.initialBackoffSeconds", "scaling.maxBackoffSeconds", _BACKOFF_REASON),
    TimingRule("retries.initialBackoffSeconds", "retries.maxBackoffSeconds", _BACKOFF_REASON),
    TimingRule(
        "leaderElection.renewDeadlineSeconds",
        "leaderElection.leaseDurationSeconds",
        "a leader must stop before another replica can acquire the Lease",
        strict=True,
    ),
    TimingRule(
        "leaderElection.retryPeriodSeconds",
        "leaderElection.renewDeadlineSeconds",
        "a leader must be able to repeat a failed renewal, and one attempt takes up to two retry periods",
        factor=2,
        strict=True,
    ),
    TimingRule(
        "limits.shutdownDelaySeconds",
        "gracefulShutdownTimeoutSeconds",
        "after the delay, the process needs time to respond to the requests in flight",
        strict=True,
    ),
    TimingRule(
        "nats.streams.recordRetentionSeconds",
        "retention.maxAgeSeconds",
        "the result of a finished invocation must exist at least as long as its record",
    ),
)


def timing_errors(values: Mapping[str, float]) -> Iterator[str]:
    """Yield an error for each rule that the settings of a process violate. `values` has the numbers by key."""
    return filter(None, (rule.violation(values) for rule in TIMING_RULES))
