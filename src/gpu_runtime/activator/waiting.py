"""What is known of the work that waits in the functions' queues: until when, and under which number. Pure."""

import heapq
from collections.abc import Iterator
from datetime import datetime

from gpu_runtime.contract.messages.dispatch import Dispatch


class Waiting:
    def __init__(self) -> None:
        self._deadlines: list[tuple[datetime, int]] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def note(self, sequence: int, dispatch: Dispatch) -> None:
        heapq.heappush(self._deadlines, (dispatch.deadline, sequence))
        self._numbers[dispatch.invocation.invocation_id] = sequence

    def over(self, moment: datetime) -> Iterator[int]:
        """Takes out the numbers of what was over at that moment. Some of it has long been done."""
        while self._deadlines and self._deadlines[0][0] <= moment:
            yield heapq.heappop(self._deadlines)[1]

    def find(self, invocation_id: str) -> int | None:
        return self._numbers.get(invocation_id)

    def forget_all(self) -> None:
        self._deadlines.clear()
        self._numbers.clear()
