"""Leader election on a Lease: at most one process works at a time, and it knows when its time is over.

Clocks of other machines are not trusted. A candidate takes a Lease over when it has itself seen it unchanged for its
whole duration. A leader counts its own time from before the request that renewed it, and stops at the renew deadline,
well before anybody may take over. A Lease alone fences nothing: writes go through a client that is `fenced` by the
`Leadership`, and are conditional besides.
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
from gpu_runtime.kube.meta import Manifest, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import NO_RETRY

logger = logging.getLogger(__name__)
MonotonicClock = Callable[[], float]


def boottime_seconds() -> float:
    """Seconds on a clock that also runs while the process is stopped or the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@dataclass(frozen=True)
class LeaderElectionConfig:
    """In seconds. Each must be shorter than the one before it."""

    lease_duration: float = 15.0
    """How long others wait for a leader that says nothing."""
    renew_deadline: float = 10.0
    """How long a leader works on without having renewed."""
    retry_period: float = 2.0
    """Between attempts to renew or to take over; no request about the Lease lasts longer than twice this."""

    def __post_init__(self) -> None:
        if not 0 < 2 * self.retry_period < self.renew_deadline < self.lease_duration:
            raise ValueError(f"a lease must outlast its renew deadline, and that two retries: {self}")


class Leadership:
    """The right to work, which ends by itself. Cheap to ask, so every write asks."""

    def __init__(self, clock: MonotonicClock = boottime_seconds, until: float = 0.0) -> None:
        self._clock = clock
        self._until = until

    def remaining(self) -> float:
        """Seconds for which this process may still write. Not positive when it may not."""
        return self._until - self._clock()

    def is_leader(self) -> bool:
        return self.remaining() > 0

    def extend(self, until: float) -> None:
        self._until = until

    def end(self) -> None:
        self._until = 0.0


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A version of the Lease, and when this process first saw it on its own clock."""

    resource_version: str
    observed_at: float


@dataclass(frozen=True, slots=True)
class CreateLease:
    """There is no Lease yet."""


@dataclass(frozen=True, slots=True)
class AcquireLease:
    """The Lease is free, abandoned, or this candidate's own already: an answer may have been lost."""


@dataclass(frozen=True, slots=True)
class StandBy:
    """Somebody else leads."""

    holder: str


LeaseAction = CreateLease | AcquireLease | StandBy


def next_lease_action(
    lease: Lease | None, seen: ObservedLease | None, me: str, now: float
) -> tuple[LeaseAction, ObservedLease | None]:
    """What a candidate does about the Lease it has just read, and what it remembers of it."""
    if lease is None:
        return CreateLease(), None
    version = lease.metadata.resource_version
    sighting = seen if seen is not None and seen.resource_version == version else ObservedLease(version, now)
    holder = lease.spec.holder_identity or ""
    if holder in ("", me):
        return AcquireLease(), sighting
    if now - sighting.observed_at >= (lease.spec.lease_duration_seconds or 0):
        return AcquireLease(), sighting
    return StandBy(holder), sighting


class LeaderElector:
    """One candidate for one Lease."""

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
        self._identity = f"{identity}_{uuid.uuid4().hex[:8]}"  # a restarted process is another candidate
        self._master_status = (metrics or KubeMetrics()).leader_election_master_status.labels(str(lease))
        self._clock: MonotonicClock = boottime_seconds
        self.leadership = Leadership(self._clock)
        """Fence every write of the work with this."""
        self._held_lease: Lease | None = None

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lead, then work, and give the lead back when the work ends.

        Raises NotLeading when the lead is lost, after the work was cancelled. Cancelled itself, it gives the lead back.
        """
        try:
            await self._acquire()
            await self._run_while_leading(work)
        finally:
            await self._release()

    async def _acquire(self) -> None:
        seen: ObservedLease | None = None
        while True:
            try:
                lease = await self._get_lease()
                move, seen = next_lease_action(lease, seen, self._identity, self._clock())
                if await self._perform(move, lease):
                    logger.info("leading", extra=self._log_fields)
                    self._master_status.set(1)
                    return
            except (KubeConflict, KubeAlreadyExists):
                logger.debug("another candidate was faster", extra=self._log_fields)
            except KubeError as error:
                logger.warning("cannot campaign", extra={**self._log_fields, "error": str(error)})
            await asyncio.sleep(self._config.retry_period * (0.8 + 0.4 * random.random()))  # noqa: S311 - no secret

    async def _get_lease(self) -> Lease | None:
        try:
            return await self._client.get(LEASES, self._key)
        except KubeNotFound:
            return None

    async def _perform(self, move: LeaseAction, lease: Lease | None) -> bool:
        """Make the move; whether it made this process the leader."""
        started = self._clock()
        match move:
            case StandBy():
                return False
            case CreateLease():
                self._held_lease = await self._client.create(LEASES, self._lease_manifest())
            case AcquireLease():
                assert lease is not None  # noqa: S101
                self._held_lease = await self._patch_lease(lease, self._lease_spec(lease.spec))
        self.leadership.extend(started + self._config.renew_deadline)
        return True

    async def _run_while_leading(self, work: Callable[[], Awaitable[None]]) -> None:
        async def working() -> None:
            await work()
            renewing.cancel()

        try:
            async with asyncio.TaskGroup() as tasks:
                renewing = tasks.create_task(self._renew())
                tasks.create_task(working())
        except BaseExceptionGroup as group:
            lost, rest = group.split(KubeNotLeader)
            if lost is None or rest is not None:
                raise
            raise KubeNotLeader(f"{self._identity} no longer leads {self._key}") from lost

    async def _renew(self) -> None:
        """Renew until that has not worked for the renew deadline, or somebody else holds the Lease."""
        while True:
            await asyncio.sleep(min(self._config.retry_period, max(0.0, self.leadership.remaining())))
            if not self.leadership.is_leader():
                raise KubeNotLeader("the renew deadline has passed")
            started = self._clock()
            try:
                async with asyncio.timeout(self.leadership.remaining()):
                    await self._renew_once()
                self.leadership.extend(started + self._config.renew_deadline)
            except KubeNotLeader:
                raise
            except (KubeError, TimeoutError) as error:
                logger.warning("cannot renew", extra={**self._log_fields, "error": str(error) or "no time left"})

    async def _renew_once(self) -> None:
        assert self._held_lease is not None  # noqa: S101
        self._held_lease = await self._update_held_lease(self._held_lease, {})

    async def _update_held_lease(self, held: Lease, changes: dict[str, Any]) -> Lease:
        """Write the Lease that this process holds. Raises NotLeading when somebody else does."""
        try:
            return await self._patch_lease(held, self._lease_spec(held.spec) | changes)
        except KubeConflict:
            # Perhaps the last attempt succeeded without an answer: it was lost, or nobody waited for it any more.
            lease = await self._get_lease()
            if lease is None or lease.spec.holder_identity != self._identity:
                self.leadership.end()
                raise KubeNotLeader("somebody else holds the lease") from None
            return await self._patch_lease(lease, self._lease_spec(lease.spec) | changes)

    async def _release(self) -> None:
        """Give the Lease back, so that the next one need not wait for its end."""
        self._master_status.set(0)
        held, self._held_lease = self._held_lease, None
        led = self.leadership.is_leader()
        self.leadership.end()
        if held is None or not led:
            return
        try:
            await self._update_held_lease(held, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except KubeError as error:
            logger.warning("cannot give the lease back", extra={**self._log_fields, "error": str(error)})
        else:
            logger.info("gave the lease back", extra=self._log_fields)

    async def _patch_lease(self, lease: Lease, spec: dict[str, Any]) -> Lease:
        """Write the Lease if it is still this version; a patch, so that others' labels on it stay."""
        version = lease.metadata.resource_version
        return await self._client.merge_patch(LEASES, self._key, {"spec": spec}, resource_version=version)

    def _lease_manifest(self) -> Manifest:
        metadata = {"namespace": self._key.namespace, "name": self._key.name}
        return {"metadata": metadata, "spec": self._lease_spec(LeaseSpec(holder_identity=self._identity))}

    def _lease_spec(self, before: LeaseSpec) -> dict[str, Any]:
        """What the Lease says while this process holds it."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before.holder_identity == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._config.lease_duration),
            "acquireTime": before.acquire_time if mine and before.acquire_time else now,
            "renewTime": now,
            "leaseTransitions": (before.lease_transitions or 0) + (not mine),
        }

    @property
    def _log_fields(self) -> dict[str, object]:
        return {"lease": str(self._key), "identity": self._identity}
