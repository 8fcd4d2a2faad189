"""A priority queue of dispatched invocations, ordered by deadline. Nothing here awaits."""

import heapq
from datetime import datetime

from gpu_runtime.contract.messages.dispatch import Dispatch


class DeadlineQueue:
    def __init__(self) -> None:
        self._deadlines: list[tuple[datetime, int, str]] = []
        self._sequences: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, sequence: int, dispatch: Dispatch) -> None:
        id_ = dispatch.invocation.invocation_id
        heapq.heappush(self._deadlines, (dispatch.deadline, sequence, id_))
        self._sequences[id_] = sequence

    def first_expired(self, time: datetime) -> int | None:
        """Return the stream sequence of the invocation with the earliest deadline.

        Return None if this deadline is after `time`. The invocation may have finished already.
        """
        return self._deadlines[0][1] if self._deadlines and self._deadlines[0][0] <= time else None

    def pop_first(self) -> None:
        """Remove the invocation with the earliest deadline."""
        _, _, id_ = heapq.heappop(self._deadlines)
        self._sequences.pop(id_, None)

    def postpone_first(self, time: datetime) -> None:
        """Return the invocation with the earliest deadline again after `time`."""
        _, sequence, id_ = self._deadlines[0]
        heapq.heapreplace(self._deadlines, (time, sequence, id_))

    def sequence_of(self, invocation_id: str) -> int | None:
        return self._sequences.get(invocation_id)

    def clear(self) -> None:
        self._deadlines.clear()
        self._sequences.clear()
