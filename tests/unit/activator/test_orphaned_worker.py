"""The leader removes a worker whose function is deleted. It does not remove a worker that may run an invocation."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.reconcile import FunctionReconciler
from gpu_runtime.activator.settings import ScalingSettings
from gpu_runtime.activator.worker_backoff import WorkerBackoff
from gpu_runtime.activator.worker_liveness import WorkerLiveness
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.messages.drain_request import DrainStatus
from gpu_runtime.contract.messages.streams import StreamLimits, StreamTopology
from gpu_runtime.contract.messages.worker_event import WorkerEvent
from tests.unit.activator.activator_objects import unit
from tests.unit.activator.test_worker_liveness import KEY, Clock, event, slow_event

UNIT_AGE_SECONDS = 3600.0


class BusyWorkerLifecycle:
    """The worker confirms a drain request and still runs an invocation."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    async def drain(self, _unit: GPUUnit, pod_uid: str, *, force: bool) -> DrainStatus:
        self.requests.append(f"drain {pod_uid} {force}")
        return DrainStatus(accepted=False, in_flight=1)

    async def retire(self, unit: GPUUnit) -> None:
        self.requests.append(f"retire {unit.metadata.name}")


async def requests_after(
    seconds: float,
    *events: WorkerEvent,
    phase: str | None = None,
    dispatch_ack_wait_seconds: float = 60,
    pod_uid: str | None = "one",
) -> list[str]:
    """Return what the leader requests this time after it subscribed and received the events."""
    client: Any = SimpleNamespace(with_options=lambda **_: None)
    clock, functions, lifecycle = Clock(), FunctionLister(client, "stock"), BusyWorkerLifecycle()
    functions.cache_is_fresh = lambda: True  # type: ignore[method-assign]
    worker = unit(KEY.name, worker_of="f", phase=phase, pod_uid=pod_uid)
    liveness, unused = WorkerLiveness(clock), cast(Any, None)
    for each in events:
        liveness.observe(each)
    clock.now = seconds
    reconciler = FunctionReconciler(
        functions=functions,
        liveness=liveness,
        backlog=unused,
        lifecycle=cast(Any, lifecycle),
        nats=unused,
        topology=StreamTopology(limits=StreamLimits(dispatch_ack_wait_seconds=dispatch_ack_wait_seconds)),
        settings=ScalingSettings(),
        metrics=unused,
        clock=clock,
        seconds_since=lambda _: UNIT_AGE_SECONDS,
        worker_backoff=WorkerBackoff(Backoff()),
        recorder=unused,
    )
    await reconciler.reconcile(worker)
    return lifecycle.requests


@pytest.mark.parametrize("seconds", [1, 19, 59, 599])
async def test_busy_worker_with_a_long_heartbeat_interval_gets_a_drain_request(seconds: float) -> None:
    assert await requests_after(seconds, slow_event("started", 1, in_flight=1)) == ["drain one False"]


@pytest.mark.parametrize(("interval", "seconds"), [(20, 59), (60, 179)])
async def test_busy_worker_of_a_failed_unit_is_retired_after_three_missed_heartbeats(
    interval: float, seconds: float
) -> None:
    busy = slow_event("started", 1, in_flight=1, heartbeat_seconds=interval)
    assert await requests_after(seconds, busy, phase="Failed") == ["drain one False"]
    assert await requests_after(seconds + 2, busy, phase="Failed") == ["retire f-w0"]


async def test_worker_without_an_event_is_retired_after_the_ack_wait() -> None:
    assert await requests_after(59) == []
    assert await requests_after(61) == ["retire f-w0"]
    assert await requests_after(14, dispatch_ack_wait_seconds=15) == []
    assert await requests_after(16, dispatch_ack_wait_seconds=15) == ["retire f-w0"]


async def test_silent_worker_is_retired_after_the_liveness_timeout() -> None:
    assert await requests_after(599, event("registered", 1)) == ["drain one False"]
    assert await requests_after(601, event("registered", 1)) == ["retire f-w0"]


@pytest.mark.parametrize("pod_uid", [None, "two"], ids=["no pod", "a new pod"])
async def test_drain_request_is_sent_only_to_the_recorded_pod(pod_uid: str | None) -> None:
    """Another pod must not confirm that the worker may be deleted. The activator waits for an event of the new pod."""
    assert await requests_after(1, event("draining", 1), pod_uid=pod_uid) == []
