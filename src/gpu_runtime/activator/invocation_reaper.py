"""Ends what waits for nobody: it is too late, or taken back, or its function is gone; and takes out what was done and
is still there. The leader alone does this.

A worker that has work in hand ends it itself, also when its time is over: the reaper comes a little later. If both end
it, the result that is stored first stands.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from gpu_runtime.activator.deadline_queue import Waiting
from gpu_runtime.activator.function_lister import Functions
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import Reaping
from gpu_runtime.activator.terminal_results import Ending, Endings, gone, taken_back, timed_out
from gpu_runtime.contract.messages.dead_letter import DeadLetters
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_id import check_address
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, Known, Stage, known_from, read_record
from gpu_runtime.contract.messages.message_codec import Unreadable, decode
from gpu_runtime.contract.messages.result import Failure, ResultState
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.contract.messages.subjects import ANY, BadSubject, Queue
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.delivery import Delivery
from gpu_runtime.jetstream.errors import NotFound, StreamError
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.stream_admin import acknowledged_up_to, delete_consumer, holdings
from gpu_runtime.jetstream.stream_messages import Kept, first_kept, remove
from gpu_runtime.jetstream.stream_specs import ConsumerSpec
from gpu_runtime.kube.errors import KubeError

logger = logging.getLogger(__name__)

YOUNG = timedelta(seconds=1)
"""Work of a function with free workers is done before it is this old: it need not be looked at."""
AT_ONCE = 100
"""How much work of one function is looked at before the others' has its turn again."""
LEFT_EVERY = timedelta(seconds=10)
"""How often it is looked for what was done and is still there: only a server that met a full disk leaves some."""
SLACK = 1000
"""How much more than twice the work that waits may be remembered before it is read anew."""
NEVER = datetime.min.replace(tzinfo=UTC)
_ZERO = timedelta()


class Standing(Enum):
    """How an invocation stands against an ending that is thought of."""

    ENDED = auto()
    HELD = auto()
    """It is not for the reaper to end it, or not in this way."""
    OPEN = auto()


def standing(record: InvocationRecord, ending: Ending) -> Standing:
    if record.stage is Stage.TERMINAL:
        return Standing.ENDED
    in_hand = record.stage is Stage.RUNNING and ending.state is not ResultState.EXPIRED
    mistaken = ending.state is ResultState.CANCELLED and not record.cancelled
    return Standing.HELD if in_hand or mistaken else Standing.OPEN


@dataclass
class Reaper:
    nats: Connection
    topology: Topology
    records: Bucket
    functions: Functions
    endings: Endings
    settings: Reaping
    metrics: ActivatorMetrics
    now: Callable[[], datetime]
    _waiting: Waiting = field(default_factory=Waiting)
    _next: int = 1
    """The number from which on the stream has not been read yet."""
    _made_at: str = ""
    """When the stream was made that was read."""
    _taken_back: set[str] = field(default_factory=set)
    _served: set[str] = field(default_factory=set)
    """Functions that were seen, whose consumers are there."""
    _missing: dict[str, datetime] = field(default_factory=dict)
    """Since when a function that has work, or had a consumer, is not there."""
    _looked_for_left: datetime = NEVER
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _stopped: bool = False
    _running: bool = False

    async def run(self) -> None:
        """Reap until told to stop."""
        await self.functions.units.synced()
        self._waiting.forget_all()
        self._next, self._running = 1, True
        try:
            while not self._stopped:
                await self._pass()
        finally:
            self._running = False
            self._taken_back.clear()

    async def _pass(self) -> None:
        try:
            await self.once()
        except StreamError as error:  # the next pass comes soon
            logger.warning("the reaper was interrupted", extra={"error": str(error)})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.pass_seconds):
                await self._wake.wait()
        self._wake.clear()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def take_back(self, invocation_id: str) -> None:
        """A caller took an invocation back."""
        if self._running:
            self._taken_back.add(invocation_id)
            self._wake.set()

    async def once(self) -> None:
        held = await holdings(self.nats, self._stream, self.topology.subjects.all_of(Queue.DISPATCH))
        counts = {subject.rpartition(".")[2]: count for subject, count in held.by_subject.items()}
        if held.made_at != self._made_at or len(self._waiting) > 2 * sum(counts.values()) + SLACK:
            self._waiting.forget_all()
            self._next, self._made_at = 1, held.made_at
        await self._read(eagerly=bool(self._taken_back))
        await self._reap_taken_back()
        await self._reap_over()
        await self._reap_gone(counts)
        await self._reap_left(counts)

    async def _read(self, *, eagerly: bool) -> None:
        """Learn what waits, up to what came just now; eagerly, that too."""
        youngest = self.now() - (_ZERO if eagerly else YOUNG)
        while (kept := await self._kept(self._next)) and (eagerly or kept.stored_at <= youngest):
            self._next = kept.sequence + 1
            with contextlib.suppress(Unreadable):  # whoever takes it gives it up
                self._waiting.note(kept.sequence, decode(kept.data, Dispatch))

    async def _reap_over(self) -> None:
        over_by = self.now() - timedelta(seconds=self.settings.grace_seconds)
        while (sequence := self._waiting.first_over(over_by)) is not None:
            await self._reap_one(sequence, timed_out())
            self._waiting.forget_first()

    async def _reap_taken_back(self) -> None:
        for invocation_id in tuple(self._taken_back):
            sequence = self._waiting.find(invocation_id)
            if sequence is not None:
                await self._reap_one(sequence, taken_back())
            self._taken_back.discard(invocation_id)

    async def _reap_gone(self, counts: dict[str, int]) -> None:
        self._served |= self.functions.request_ids()
        there = {each for each in self._served | counts.keys() if self.functions.serving(each) is not None}
        if not self.functions.certain():
            return
        now, absent = self.now(), (self._served | counts.keys()) - there
        self._missing = {each: self._missing.get(each, now) for each in absent}
        for request_id, since in self._missing.items():
            if (now - since).total_seconds() >= self.settings.gone_seconds and await self._is_gone(request_id):
                await self._reap_function(request_id)

    async def _is_gone(self, request_id: str) -> bool:
        try:
            return await self.functions.is_gone(request_id)
        except KubeError as error:
            logger.warning("whether a function is there cannot be known", extra={"error": str(error)})
            return False

    async def _reap_function(self, request_id: str) -> None:
        sequence, left, ended = 1, False, 0
        subject = self.topology.subjects.all_of(Queue.DISPATCH).removesuffix(ANY) + request_id
        while kept := await self._kept(sequence, subject):
            if ended == AT_ONCE:
                self._wake.set()  # the rest at once, but after what is over or taken back elsewhere
                return
            was_ended = await self._reap(kept, gone())
            sequence, left, ended = kept.sequence + 1, left or not was_ended, ended + was_ended
        if not left:
            with contextlib.suppress(BadSubject):  # of a queue that no function can have, somebody's message lay there
                await delete_consumer(self.nats, self.topology.work(request_id))
            self._served.discard(request_id)

    async def _reap_left(self, counts: dict[str, int]) -> None:
        """Take out what was acknowledged and is still there. Nobody gets it again, and it would count as work."""
        if self.now() - self._looked_for_left < LEFT_EVERY:
            return
        for request_id in counts:
            with contextlib.suppress(BadSubject, NotFound):  # no function's queue, or nobody has taken from it yet
                await self._reap_acknowledged(request_id, self.topology.work(request_id))
        self._looked_for_left = self.now()

    async def _reap_acknowledged(self, request_id: str, consumer: ConsumerSpec) -> None:
        floor, sequence = await acknowledged_up_to(self.nats, consumer), 1
        for _ in range(AT_ONCE):
            kept = await self._kept(sequence, consumer.filter_subject)
            if kept is None or kept.sequence > floor:
                return
            if await self._has_ended(kept) and await remove(self.nats, self._stream, kept.sequence):
                logger.warning("it was done, and taken out", extra={"function": request_id, "sequence": kept.sequence})
            sequence = kept.sequence + 1

    async def _has_ended(self, kept: Kept) -> bool:
        """Whether its record says so. Its result may still wait to be stored; and what the server takes for done and is
        not has its deadline."""
        try:
            known = await self._known(decode(kept.data, Dispatch))
        except Unreadable:  # whoever took it has given it up
            return True
        return known is not None and known.record.stage is Stage.TERMINAL

    async def _reap_one(self, sequence: int, ending: Ending) -> None:
        kept = await self._kept(sequence)
        if kept is not None and kept.sequence == sequence:
            await self._reap(kept, ending)

    async def _reap(self, kept: Kept, ending: Ending) -> bool:
        """End it and take it out. False where a worker has it in hand, and is to end it."""
        try:
            dispatch = decode(kept.data, Dispatch)
            check_address(dispatch.invocation, kept.subject, self.topology.subjects)
        except Unreadable as error:
            await self._bury(kept, str(error))
        else:
            if not await self._ended(dispatch, kept, ending):
                return False
        await remove(self.nats, self._stream, kept.sequence)
        self.metrics.reaped.labels(ending.state.value).inc()
        return True

    async def _ended(self, dispatch: Dispatch, kept: Kept, ending: Ending) -> bool:
        known = await self._known(dispatch)
        if known is not None:
            match standing(known.record, ending):
                case Standing.ENDED:
                    return True
                case Standing.HELD:
                    return False
        await self.endings.end(dispatch.invocation, ending, self.now(), known or known_from(kept.headers))
        return True

    async def _known(self, dispatch: Dispatch) -> Known | None:
        """What the records have of it; None where that is nothing, or nothing that can be read."""
        entry = await self.records.get(dispatch.invocation.invocation_id)
        with contextlib.suppress(Unreadable):
            return read_record(entry.value, entry.revision) if entry is not None else None
        return None

    async def _bury(self, kept: Kept, why: str) -> None:
        """What nobody can read, and nobody will ever take, is kept as a dead letter."""
        failure = Failure(failure_class=FailureClass.BAD_MESSAGE, message=why)
        delivery = Delivery(kept.subject, kept.data, kept.headers, self._stream, kept.sequence, 0, kept.stored_at)
        letters = DeadLetters(self.topology.subjects, Queue.DISPATCH)
        await self.endings.publisher.publish(letters.outgoing(letters.letter(delivery, failure, self.now())))

    async def _kept(self, sequence: int, subject: str = "") -> Kept | None:
        subject = subject or self.topology.subjects.all_of(Queue.DISPATCH)
        return await first_kept(self.nats, self._stream, subject, sequence)

    @property
    def _stream(self) -> str:
        return self.topology.stream_name(Queue.DISPATCH)
