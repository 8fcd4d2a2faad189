"""docs/reference/timers.md: the times of all processes, how they are derived, and which of them depend on each other."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from checks.settings_keys import PROCESSES
from docgen.markdown import code, page, table
from gpu_runtime.contract.crd.gpu_unit import Serverless
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.timing import (
    TAKEOVER_GRACE_SECONDS,
    TIMING_RULES,
    WORKER_DEADLINE_GRACE_SECONDS,
    TimingRule,
    capacity_ttl,
    heartbeat_timeout,
    kube_attempt_timeout,
    queue_expiry_grace,
    sync_wait_limit,
    termination_grace,
)
from gpu_runtime.process.settings import load_settings, numbers_by_key, parse_settings

CONFIG = Path(__file__).parents[1] / "config"
REQUIRED_KEYS = MappingProxyType(
    {
        "controller-manager": "images: {stock: image, placeholder: image}",
        "worker-sidecar": "{functionID: id, requestID: function, worker: worker, namespace: namespace}",
    }
)
"""Keys without a default. They are not times."""

SETTINGS: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType(
    {
        (
            "ack wait of INVOKE",
            "if an activator dies, JetStream redelivers its unacknowledged invocations after this time",
        ): ("activator nats.streams.invokeAckWaitSeconds",),
        (
            "ack wait of DISPATCH",
            "if a worker dies, JetStream redelivers its invocations after this time. The time also applies to the workers of a deleted or disabled function. Normally, the leading activator drains these workers before it retires them. If the leading activator has been connected to NATS for this time and has received no event from such a worker, it retires this worker without a drain",
        ): ("activator nats.streams.dispatchAckWaitSeconds",),
        (
            "ack wait of RESULT",
            "if the result store dies, JetStream redelivers the unacknowledged results after this time",
        ): ("result-store nats.streams.resultAckWaitSeconds",),
        ("heartbeat", "interval at which a sidecar sends a heartbeat. Every event of a worker contains the interval"): (
            "controller-manager serverless.sidecar.heartbeatSeconds",
        ),
        (
            "worker liveness",
            "if a worker sends no event for this time, the worker is unhealthy, and the leading activator replaces the worker",
        ): ("activator scaling.workerLivenessTimeoutSeconds",),
        (
            "failed worker",
            "this time replaces `scaling.workerLivenessTimeoutSeconds` if the unit of the worker is in phase Failed",
        ): ("activator scaling.failedWorkerGraceSeconds",),
        (
            "worker backoff",
            "after a worker of a function has failed, the leading activator creates no worker of this function for this time. The time doubles with each failure",
        ): (
            "activator scaling.initialBackoffSeconds",
            "activator scaling.maxBackoffSeconds",
        ),
        ("drain request", "time that the leading activator waits for the response to a drain request"): (
            "activator scaling.drainRequestTimeoutSeconds",
        ),
        ("drain", "maximum time that a terminating worker pod waits for its invocations in flight"): (
            "controller-manager serverless.sidecar.drainTimeoutSeconds",
        ),
        (
            "deadline grace",
            "time after the deadline in which only the worker may end an invocation that it runs. After this time, the reaper ends the invocation as `expired`",
        ): ("activator reaping.deadlineGraceSeconds",),
        (
            "deleted function",
            "time that the reaper waits after a function was deleted or disabled. Then the reaper ends the waiting invocations of the function as failed",
        ): ("activator reaping.deletedFunctionGraceSeconds",),
        (
            "unknown function",
            "time that an invocation waits if the cache of the activator does not contain its function. During this time, a new function can still appear in the cache. After this time, the activator reads the function from the API server",
        ): ("activator dispatching.unknownFunctionGraceSeconds",),
        (
            "retry backoff",
            "if an attempt of an invocation fails, JetStream redelivers the invocation after this time. The time doubles with each delivery",
        ): (
            "worker-sidecar retries.initialBackoffSeconds",
            "worker-sidecar retries.maxBackoffSeconds",
        ),
        ("lease", "if the leader has not renewed the Lease for this time, another replica may acquire the Lease"): (
            "controller-manager leaderElection.leaseDurationSeconds",
        ),
        ("renew deadline", "if a leader could not renew the Lease for this time, the leader stops its work"): (
            "controller-manager leaderElection.renewDeadlineSeconds",
        ),
        ("retry period", "time between two attempts to renew or to acquire the Lease"): (
            "controller-manager leaderElection.retryPeriodSeconds",
        ),
        (
            "recovery interval",
            "interval at which each replica of the runtime API looks for stalled operations, stale claims and orphaned objects",
        ): ("runtime-api operations.recoveryIntervalSeconds",),
        (
            "stalled after",
            "if an unfinished operation makes no progress for this time, recovery resumes the operation",
        ): ("runtime-api operations.stalledAfterSeconds",),
        ("request timeout", "if an HTTP request takes longer than this time, the runtime API returns 503"): (
            "runtime-api limits.requestTimeoutSeconds",
        ),
        (
            "shutdown delay",
            "time for which the runtime API still accepts requests after SIGTERM. During this time, load balancers can remove the replica",
        ): ("runtime-api limits.shutdownDelaySeconds",),
        (
            "graceful shutdown of the API",
            "maximum time from SIGTERM to the end of the runtime API process, including the shutdown delay",
        ): ("runtime-api gracefulShutdownTimeoutSeconds",),
        (
            "graceful shutdown",
            "maximum time from SIGTERM to the end of the controller manager, the activator or the result store process. For sidecars, the controller manager sets this timeout to 5 s",
        ): ("activator gracefulShutdownTimeoutSeconds",),
    }
)
"""Keys of the timer, each with its process, by name and effect of the timer. Two keys are a minimum and a maximum."""


def timers_page() -> str:
    introduction = (
        "The times in the table *Settings* are settings of processes. Only the idle timeout is a field of a GPUUnit. The last column"
        " of this table shows the value in `config/default`, if this value differs from the default of the code. The module"
        " `contract/timing.py` defines the times in the table *Derived times*."
    )
    rules = (
        "If the settings of a process violate a rule, the process does not start. The process prints both keys with their values, and exits with"
        " status 2. A process can check only its own settings. So use the same `nats.streams` in every process."
    )
    return page(
        "Timers",
        introduction,
        f"## Settings\n\n{table(('timer', 'default', 'setting', 'effect', 'config/default'), _settings())}",
        f"## Derived times\n\n{table(('timer', 'default', 'derived from', 'effect'), _derived())}",
        f"## Rules\n\n{rules}\n\n{table(('rule', 'reason', 'processes'), map(_rule, TIMING_RULES))}",
    )


def _settings() -> Iterator[tuple[str, ...]]:
    for (name, effect), timers in SETTINGS.items():
        processes, keys = zip(*(each.split() for each in timers), strict=True)
        default = _range([_defaults(processes[0])[key] for key in keys])
        installed = _range([_installed(processes[0])[key] for key in keys])
        yield name, default, ", ".join(map(code, keys)), effect, installed if installed != default else ""
    idle = f"{Serverless().idle_timeout_seconds:g} s"
    effect = "when a worker has been idle for this time and the function does not need the worker, the leading activator removes the worker"
    yield "idle timeout", idle, code("spec.serverless.idleTimeoutSeconds"), effect, ""


def _derived() -> Iterator[tuple[str, ...]]:
    streams, api, sidecar = StreamTopology(), _defaults("runtime-api"), _defaults("worker-sidecar")
    request_timeout = api["limits.requestTimeoutSeconds"]
    yield (
        "extension of the ack wait",
        _range([streams.dispatch_consumer("f").ack_extension_seconds]),
        "a third of the ack wait of DISPATCH",
        "interval at which a sidecar extends the ack wait of the invocations that the worker runs. In the same way, the activator extends the ack wait of INVOKE, and the result store extends the ack wait of RESULT",
    )
    yield (
        "heartbeat timeout",
        _range([heartbeat_timeout(sidecar["heartbeatSeconds"])]),
        "three times the heartbeat interval in the last event of the worker",
        "the activator considers a worker alive until this time has passed since the last event of the worker, even if `scaling.failedWorkerGraceSeconds` or `scaling.workerLivenessTimeoutSeconds` is shorter",
    )
    yield (
        "capacity TTL",
        _range([capacity_ttl(sidecar["heartbeatSeconds"])]),
        "2.4 times the heartbeat interval in the last event of the worker",
        "the activator ignores a reported capacity that is older than this time. If the activator knows no free capacity of a function, it sets the record of an invocation to `dispatched` and sends a demand hint",
    )
    yield (
        "termination grace period of a worker",
        _range([termination_grace(sidecar["drainTimeoutSeconds"])]),
        "the drain timeout, plus 15 s for the exit of the containers. If `spec.template.terminationGracePeriodSeconds` is longer, it applies instead",
        "`terminationGracePeriodSeconds` of the worker pod",
    )
    yield (
        "deadline grace of a worker",
        _range([WORKER_DEADLINE_GRACE_SECONDS]),
        "a constant. `reaping.deadlineGraceSeconds` must be longer than this constant",
        "time that a sidecar waits after the deadline for the response of the framework, so that the framework can report the timeout itself",
    )
    yield (
        "takeover by another worker",
        _range([TAKEOVER_GRACE_SECONDS]),
        "a constant, which is also the default of `reaping.deadlineGraceSeconds`",
        "if a worker receives a redelivery of an invocation that another worker runs, the receiving worker may end the invocation only when this time has passed since the deadline",
    )
    yield (
        "expiry in the queue",
        _range([queue_expiry_grace(api["nats.streams.invokeAckWaitSeconds"]).total_seconds()]),
        "the ack wait of INVOKE, but at least 30 s",
        "if an invocation is still unfinished when this time has passed since its deadline, and the runtime API gets a query for the invocation, the runtime API ends the invocation as `expired`",
    )
    yield (
        "sync wait",
        _range([sync_wait_limit(api["invocations.maxSyncWaitSeconds"], request_timeout)]),
        "`invocations.maxSyncWaitSeconds`, but at most 90 % of `limits.requestTimeoutSeconds`",
        "if a synchronous invocation has no result after this time, the runtime API returns 504",
    )
    yield (
        "attempt of a Kubernetes request",
        _range([kube_attempt_timeout(api["kubernetes.requestTimeoutSeconds"], request_timeout)]),
        "`kubernetes.requestTimeoutSeconds`, but at most 10 % of `limits.requestTimeoutSeconds`",
        "timeout of one attempt when the runtime API sends a request to Kubernetes and a caller waits for the response",
    )


def _rule(rule: TimingRule) -> tuple[str, ...]:
    requirement = rule.requirement.removesuffix(f", because {rule.reason}")
    for key in (rule.shorter, rule.longer):
        requirement = " ".join(code(word) if word == key else word for word in requirement.split())
    processes = [name for name in PROCESSES if {rule.shorter, rule.longer} <= _defaults(name).keys()]
    return requirement, rule.reason, ", ".join(processes)


@cache
def _defaults(process: str) -> dict[str, float]:
    return numbers_by_key(parse_settings(REQUIRED_KEYS.get(process, ""), PROCESSES[process]))


@cache
def _installed(process: str) -> dict[str, float]:
    """Return the values of `config/default`. A sidecar has no file there, because the controller manager writes it."""
    if process == "worker-sidecar":
        return _defaults(process)
    folder = "manager" if process == "controller-manager" else process
    return numbers_by_key(load_settings(CONFIG / folder / "settings.yaml", PROCESSES[process]))


def _range(seconds: list[float]) -> str:
    return " to ".join(f"{each:g} s" for each in seconds)
