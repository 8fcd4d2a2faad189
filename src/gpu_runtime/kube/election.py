"""Leader election with a Lease: at most one process leads, and it stops before another process can acquire the Lease.

The algorithm does not trust the clocks of other machines. If another candidate holds the Lease, a candidate acquires it
only after the Lease has not changed for the whole lease duration, measured on the clock of the candidate. A leader
measures its time from before it sent the request that renewed the Lease. It stops at the renew deadline, well before
another candidate can acquire the Lease. A Lease alone does not block writes. The leader therefore writes through a
client that is `fenced` by the `Leadership`, and every write is also conditional.
"""

import asyncio
import datetime
import logging
import math
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gpu_runtime.kube.builtin_kinds import LEASES, Lease, LeaseSpec
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeAlreadyExists, KubeConflict, KubeError, KubeNotFound, KubeNotLeader
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import NO_RETRY

logger = logging.getLogger(__name__)
MonotonicClock = Callable[[], float]


def boottime_seconds() -> float:
    """Return the seconds of a clock that also advances while the process is stopped or the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@dataclass(frozen=True)
class LeaderElectionConfig:
    """Durations in seconds.

    The lease duration must be longer than the renew deadline. The renew deadline must be longer than twice the retry
    period.
    """

    lease_duration: float = 15.0
    """How long other candidates wait before they acquire a Lease that its holder does not renew."""
    renew_deadline: float = 10.0
    """How long a leader continues to lead after its last successful renewal."""
    retry_period: float = 2.0
    """Time between attempts to renew or to acquire. A request for the Lease times out after twice this time."""

    def __post_init__(self) -> None:
        if not 0 < 2 * self.retry_period < self.renew_deadline < self.lease_duration:
            raise ValueError(
                "lease_duration must be longer than renew_deadline, "
                f"and renew_deadline must be longer than twice retry_period: {self}"
            )


class Leadership:
    """The right to write, which expires unless it is extended. The check is cheap, so every write performs it."""

    def __init__(self, clock: MonotonicClock = boottime_seconds, until: float = 0.0) -> None:
        self._clock = clock
        self._until = until

    def remaining(self) -> float:
        """Return the seconds until the right to write expires. Zero or negative: it has expired."""
        return self._until - self._clock()

    def is_leader(self) -> bool:
        return self.remaining() > 0

    def extend(self, until: float) -> None:
        self._until = until

    def end(self) -> None:
        self._until = 0.0


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A version of the Lease, and when this process first observed it. The time is on the clock of this process."""

    resource_version: str
    observed_at: float


@dataclass(frozen=True, slots=True)
class CreateLease:
    """The Lease does not exist."""


@dataclass(frozen=True, slots=True)
class AcquireLease:
    """The Lease is released, has expired, or is already held by this candidate.

    A candidate holds the Lease without knowing it if the response to its last write was lost.
    """


@dataclass(frozen=True, slots=True)
class StandBy:
    """Another candidate holds the Lease."""

    holder: str


LeaseAction = CreateLease | AcquireLease | StandBy


def next_lease_action(
    lease: Lease | None, previous: ObservedLease | None, identity: str, now: float
) -> tuple[LeaseAction, ObservedLease | None]:
    """Decide the next action of a candidate that has just read the Lease, and the observation that it remembers."""
    if lease is None:
        return CreateLease(), None
    version = lease.metadata.resource_version
    observed = ObservedLease(version, now)
    if previous is not None and previous.resource_version == version:
        observed = previous
    holder = lease.spec.holder_identity or ""
    if holder in ("", identity):
        return AcquireLease(), observed
    if now - observed.observed_at >= (lease.spec.lease_duration_seconds or 0):
        return AcquireLease(), observed
    return StandBy(holder), observed


class LeaderElector:
    """A candidate for one Lease."""

    def __init__(
        self,
        client: KubeClient,
        lease: ObjectKey,
        identity: str,
        config: LeaderElectionConfig | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        self._config = config or LeaderElectionConfig()
        self._client = client.without_connection_limit().with_options(
            timeout=2 * self._config.retry_period, retries=NO_RETRY
        )
        self._key = lease
        self._identity = f"{identity}_{uuid.uuid4().hex[:8]}"  # a restarted process is a different candidate
        self._clock: MonotonicClock = boottime_seconds
        self.leadership = Leadership(self._clock)
        """The fence for every write of the leader."""
        self._held_lease: Lease | None = None
        master_status = (metrics or KubeMetrics()).leader_election_master_status.labels(lease.name)
        # Computed at scrape time: a leader that cannot renew reports 0 as soon as its leadership expires.
        master_status.set_function(lambda: float(self.leadership.is_leader()))

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Acquire the Lease, then run the work, and release the Lease when the work returns.

        If the leadership is lost, this method cancels the work, waits until the work has ended, and raises
        KubeNotLeader. If this method is cancelled, it also releases the Lease.
        """
        try:
            await self._acquire()
            await self._run_while_leading(work)
        finally:
            await self._release()

    async def _acquire(self) -> None:
        observed: ObservedLease | None = None
        while True:
            try:
                lease = await self._get_lease()
                action, observed = next_lease_action(lease, observed, self._identity, self._clock())
                if await self._perform(action, lease):
                    logger.info("leadership acquired", extra=self.log_fields)
                    return
            except (KubeConflict, KubeAlreadyExists):
                logger.debug(
                    "lease acquisition failed with a write conflict; the candidate will retry", extra=self.log_fields
                )
            except KubeError as error:
                logger.warning(
                    "lease acquisition failed; the candidate will retry", extra={**self.log_fields, "error": str(error)}
                )
            await asyncio.sleep(self._config.retry_period * (0.8 + 0.4 * random.random()))  # noqa: S311 - no secret

    async def _get_lease(self) -> Lease | None:
        try:
            return await self._client.get(LEASES, self._key)
        except KubeNotFound:
            return None

    async def _perform(self, action: LeaseAction, lease: Lease | None) -> bool:
        """Perform the action. Return whether this process is the leader now."""
        started = self._clock()
        match action:
            case StandBy():
                return False
            case CreateLease():
                metadata = {"namespace": self._key.namespace, "name": self._key.name}
                spec = self._lease_spec(LeaseSpec(holder_identity=self._identity))
                self._held_lease = await self._client.create(LEASES, {"metadata": metadata, "spec": spec})
            case AcquireLease():
                assert lease is not None  # noqa: S101
                self._held_lease = await self._patch_lease(lease, self._lease_spec(lease.spec))
        self.leadership.extend(started + self._config.renew_deadline)
        return True

    async def _run_while_leading(self, work: Callable[[], Awaitable[None]]) -> None:
        async def work_then_stop_renewal() -> None:
            await work()
            renewal.cancel()

        try:
            async with asyncio.TaskGroup() as tasks:
                renewal = tasks.create_task(self._renew())
                tasks.create_task(work_then_stop_renewal())
        except BaseExceptionGroup as group:
            lost, rest = group.split(KubeNotLeader)
            if lost is None or rest is not None:
                raise
            raise KubeNotLeader(f"{self._identity} no longer holds the lease {self._key}") from lost

    async def _renew(self) -> None:
        """Renew the Lease until the renew deadline passes without a success, or another candidate holds the Lease."""
        while True:
            await asyncio.sleep(min(self._config.retry_period, max(0.0, self.leadership.remaining())))
            if not self.leadership.is_leader():
                raise KubeNotLeader("the renew deadline has passed")
            started = self._clock()
            try:
                async with asyncio.timeout(self.leadership.remaining()):
                    assert self._held_lease is not None  # noqa: S101
                    self._held_lease = await self._update_held_lease(self._held_lease, {})
                self.leadership.extend(started + self._config.renew_deadline)
            except KubeNotLeader:
                raise
            except (KubeError, TimeoutError) as error:
                reason = str(error) or "renew deadline exceeded"
                fields = {**self.log_fields, "error": reason}
                logger.warning(
                    "lease renewal failed; the leader stops at the renew deadline if no retry succeeds", extra=fields
                )

    async def _update_held_lease(self, held: Lease, changes: dict[str, Any]) -> Lease:
        """Update the Lease that this process holds. Raises KubeNotLeader if another candidate holds it."""
        try:
            return await self._patch_lease(held, self._lease_spec(held.spec) | changes)
        except KubeConflict:
            # The previous update may have succeeded although its response was lost or its request was cancelled. In
            # that case, the conflict is with this process itself.
            lease = await self._get_lease()
            if lease is None or lease.spec.holder_identity != self._identity:
                self.leadership.end()
                raise KubeNotLeader("another candidate holds the lease") from None
            return await self._patch_lease(lease, self._lease_spec(lease.spec) | changes)

    async def _release(self) -> None:
        """Release the Lease, so that the next candidate does not have to wait until the Lease expires."""
        held, self._held_lease = self._held_lease, None
        was_leader = self.leadership.is_leader()
        self.leadership.end()
        if held is None or not was_leader:
            return
        try:
            await self._update_held_lease(held, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except KubeError as error:
            fields = {**self.log_fields, "error": str(error)}
            logger.warning("lease release failed; the next leader must wait until the lease expires", extra=fields)
        else:
            logger.info("lease released", extra=self.log_fields)

    async def _patch_lease(self, lease: Lease, spec: dict[str, Any]) -> Lease:
        """Update the Lease if it still has the resource version of `lease`.

        A patch keeps the labels that other clients set.
        """
        version = lease.metadata.resource_version
        return await self._client.merge_patch(LEASES, self._key, {"spec": spec}, resource_version=version)

    def _lease_spec(self, current: LeaseSpec) -> dict[str, Any]:
        """Return the spec with which this process holds the Lease. `current` is the spec that the Lease has now."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_holder = current.holder_identity == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._config.lease_duration),
            "acquireTime": current.acquire_time if is_holder and current.acquire_time else now,
            "renewTime": now,
            "leaseTransitions": (current.lease_transitions or 0) + (not is_holder),
        }

    @property
    def log_fields(self) -> dict[str, object]:
        return {"lease": str(self._key), "identity": self._identity}
