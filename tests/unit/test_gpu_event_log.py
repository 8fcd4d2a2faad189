"""The log of GPU events finds containers that have the same GPU at the same time."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.e2e.gpu_event_log import EVENT, GpuInterval, find_overlaps

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def used(device: str, start: float, end: float | None) -> GpuInterval:
    exited_at = None if end is None else NOON + timedelta(seconds=end)
    return GpuInterval(device, f"n/{device}-{start}", "uid", NOON + timedelta(seconds=start), exited_at)


CASES: dict[str, tuple[list[GpuInterval], int]] = {
    "one after the other": ([used("a", 0, 1), used("a", 1, 2), used("a", 3, None)], 0),
    "two devices": ([used("a", 0, None), used("b", 0, None)], 0),
    "overlap of a millisecond": ([used("a", 0, 1.001), used("a", 1, 2)], 1),
    "container still runs": ([used("a", 0, None), used("a", 1, 2)], 1),
    "container inside another interval": ([used("a", 0, 9), used("a", 1, 2), used("a", 3, 4)], 2),
    "in another order": ([used("a", 2, 3), used("a", 0, 2.5)], 1),
}


@pytest.mark.parametrize(("intervals", "count"), CASES.values(), ids=CASES)
def test_overlaps_are_found(intervals: list[GpuInterval], count: int) -> None:
    assert len(find_overlaps(intervals)) == count


def test_events_of_containerd_are_read() -> None:
    line = '2026-11-17 22:35:57.491210123 +0000 UTC k8s.io /tasks/start {"container_id":"abc","pid":7}'
    event = EVENT.match(line)
    assert event
    assert (event["topic"], event["body"]) == ("/tasks/start", '{"container_id":"abc","pid":7}')
    assert not EVENT.match('2026-11-17 22:35:57.49 +0000 UTC k8s.io /tasks/exec-started {"container_id":"abc"}')
