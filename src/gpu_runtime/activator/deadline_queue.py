"""What is known of the work that waits in the functions' queues: until when, and under which number. Pure."""

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

    def first_expired(self, moment: datetime) -> int | None:
        """The number of what was over first, if it was by that moment. It may have been done long ago."""
        return self._deadlines[0][1] if self._deadlines and self._deadlines[0][0] <= moment else None

    def pop_first(self) -> None:
        """It is dealt with."""
        _, _, id_ = heapq.heappop(self._deadlines)
        self._sequences.pop(id_, None)

    def sequence_of(self, invocation_id: str) -> int | None:
        return self._sequences.get(invocation_id)

    def clear(self) -> None:
        self._deadlines.clear()
        self._sequences.clear()
