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
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.errors import AlreadyExists, Conflict, KubeError, NotFound, NotLeading
from gpu_runtime.kube.meta import Key, Manifest
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import IMPATIENT

logger = logging.getLogger(__name__)
Clock = Callable[[], float]


def uninterrupted() -> float:
    """Seconds on a clock that also runs while the process is stopped or the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@dataclass(frozen=True)
class Timing:
    """In seconds. Each must be shorter than the one before it."""

    lease: float = 15.0
    """How long others wait for a leader that says nothing."""
    renew_deadline: float = 10.0
    """How long a leader works on without having renewed."""
    retry: float = 2.0
    """Between attempts to renew or to take over; no request about the Lease lasts longer than twice this."""

    def __post_init__(self) -> None:
        if not 0 < 2 * self.retry < self.renew_deadline < self.lease:
            raise ValueError(f"a lease must outlast its renew deadline, and that two retries: {self}")


class Leadership:
    """The right to work, which ends by itself. Cheap to ask, so every write asks."""

    def __init__(self, clock: Clock = uninterrupted, until: float = 0.0) -> None:
        self._clock = clock
        self._until = until

    def remaining(self) -> float:
        """Seconds for which this process may still write. Not positive when it may not."""
        return self._until - self._clock()

    def still_leading(self) -> bool:
        return self.remaining() > 0

    def extend(self, until: float) -> None:
        self._until = until

    def end(self) -> None:
        self._until = 0.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A version of the Lease, and when this process first saw it on its own clock."""

    version: str
    since: float


@dataclass(frozen=True, slots=True)
class Create:
    """There is no Lease yet."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The Lease is free, abandoned, or this candidate's own already: an answer may have been lost."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody else leads."""

    holder: str


Move = Create | TakeOver | Wait


def consider(lease: Lease | None, seen: Sighting | None, me: str, now: float) -> tuple[Move, Sighting | None]:
    """What a candidate does about the Lease it has just read, and what it remembers of it."""
    if lease is None:
        return Create(), None
    version = lease.metadata.resource_version
    sighting = seen if seen is not None and seen.version == version else Sighting(version, now)
    holder = lease.spec.holder_identity or ""
    if holder in ("", me):
        return TakeOver(), sighting
    if now - sighting.since >= (lease.spec.lease_duration_seconds or 0):
        return TakeOver(), sighting
    return Wait(holder), sighting


class Elector:
    """One candidate for one Lease."""

    def __init__(
        self,
        client: Client,
        lease: Key,
        identity: str,
        timing: Timing | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        self._timing = timing or Timing()
        self._client = client.urgent().patient(timeout=2 * self._timing.retry, retries=IMPATIENT)
        self._key = lease
        self._me = f"{identity}_{uuid.uuid4().hex[:8]}"  # a restarted process is another candidate
        self._gauge = (metrics or KubeMetrics()).leading.labels(str(lease))
        self._clock: Clock = uninterrupted
        self.leadership = Leadership(self._clock)
        """Fence every write of the work with this."""
        self._held: Lease | None = None

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lead, then work, and give the lead back when the work ends.

        Raises NotLeading when the lead is lost, after the work was cancelled. Cancelled itself, it gives the lead back.
        """
        try:
            await self._campaign()
            await self._work(work)
        finally:
            await self._resign()

    async def _campaign(self) -> None:
        seen: Sighting | None = None
        while True:
            try:
                lease = await self._find()
                move, seen = consider(lease, seen, self._me, self._clock())
                if await self._make(move, lease):
                    logger.info("leading", extra=self._extra)
                    self._gauge.set(1)
                    return
            except (Conflict, AlreadyExists):
                logger.debug("another candidate was faster", extra=self._extra)
            except KubeError as error:
                logger.warning("cannot campaign", extra={**self._extra, "error": str(error)})
            await asyncio.sleep(self._timing.retry * (0.8 + 0.4 * random.random()))  # noqa: S311 - no secret

    async def _find(self) -> Lease | None:
        try:
            return await self._client.get(LEASES, self._key)
        except NotFound:
            return None

    async def _make(self, move: Move, lease: Lease | None) -> bool:
        """Make the move; whether it made this process the leader."""
        started = self._clock()
        match move:
            case Wait():
                return False
            case Create():
                self._held = await self._client.create(LEASES, self._manifest())
            case TakeOver():
                assert lease is not None  # noqa: S101
                self._held = await self._write(lease, self._spec(lease.spec))
        self.leadership.extend(started + self._timing.renew_deadline)
        return True

    async def _work(self, work: Callable[[], Awaitable[None]]) -> None:
        async def working() -> None:
            await work()
            renewing.cancel()

        try:
            async with asyncio.TaskGroup() as tasks:
                renewing = tasks.create_task(self._renew())
                tasks.create_task(working())
        except BaseExceptionGroup as group:
            lost, rest = group.split(NotLeading)
            if lost is None or rest is not None:
                raise
            raise NotLeading(f"{self._me} no longer leads {self._key}") from lost

    async def _renew(self) -> None:
        """Renew until that has not worked for the renew deadline, or somebody else holds the Lease."""
        while True:
            await asyncio.sleep(min(self._timing.retry, max(0.0, self.leadership.remaining())))
            if not self.leadership.still_leading():
                raise NotLeading("the renew deadline has passed")
            started = self._clock()
            try:
                async with asyncio.timeout(self.leadership.remaining()):
                    await self._renew_once()
                self.leadership.extend(started + self._timing.renew_deadline)
            except NotLeading:
                raise
            except (KubeError, TimeoutError) as error:
                logger.warning("cannot renew", extra={**self._extra, "error": str(error) or "no time left"})

    async def _renew_once(self) -> None:
        assert self._held is not None  # noqa: S101
        self._held = await self._rewrite(self._held, {})

    async def _rewrite(self, held: Lease, changes: dict[str, Any]) -> Lease:
        """Write the Lease that this process holds. Raises NotLeading when somebody else does."""
        try:
            return await self._write(held, self._spec(held.spec) | changes)
        except Conflict:
            # Perhaps the last attempt succeeded without an answer: it was lost, or nobody waited for it any more.
            lease = await self._find()
            if lease is None or lease.spec.holder_identity != self._me:
                self.leadership.end()
                raise NotLeading("somebody else holds the lease") from None
            return await self._write(lease, self._spec(lease.spec) | changes)

    async def _resign(self) -> None:
        """Give the Lease back, so that the next one need not wait for its end."""
        self._gauge.set(0)
        held, self._held = self._held, None
        led = self.leadership.still_leading()
        self.leadership.end()
        if held is None or not led:
            return
        try:
            await self._rewrite(held, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except KubeError as error:
            logger.warning("cannot give the lease back", extra={**self._extra, "error": str(error)})
        else:
            logger.info("gave the lease back", extra=self._extra)

    async def _write(self, lease: Lease, spec: dict[str, Any]) -> Lease:
        """Write the Lease if it is still this version; a patch, so that others' labels on it stay."""
        version = lease.metadata.resource_version
        return await self._client.merge_patch(LEASES, self._key, {"spec": spec}, resource_version=version)

    def _manifest(self) -> Manifest:
        metadata = {"namespace": self._key.namespace, "name": self._key.name}
        return {"metadata": metadata, "spec": self._spec(LeaseSpec(holder_identity=self._me))}

    def _spec(self, before: LeaseSpec) -> dict[str, Any]:
        """What the Lease says while this process holds it."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before.holder_identity == self._me
        return {
            "holderIdentity": self._me,
            "leaseDurationSeconds": math.ceil(self._timing.lease),
            "acquireTime": before.acquire_time if mine and before.acquire_time else now,
            "renewTime": now,
            "leaseTransitions": (before.lease_transitions or 0) + (not mine),
        }

    @property
    def _extra(self) -> dict[str, object]:
        return {"lease": str(self._key), "identity": self._me}
