"""Who may take a Lease over, and how long a leader may write."""

import pytest

from gpu_runtime.kube.builtin_kinds import Lease, LeaseSpec
from gpu_runtime.kube.election import (
    Create,
    Leadership,
    Move,
    Sighting,
    TakeOver,
    Timing,
    Wait,
    consider,
    uninterrupted,
)
from gpu_runtime.kube.meta import ObjectMeta


def held(holder: str | None, version: str = "7", seconds: int | None = 15) -> Lease:
    spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=seconds, renew_time="2001-01-01T00:00:00.000000Z")
    return Lease(metadata=ObjectMeta(name="lead", resource_version=version), spec=spec)


@pytest.mark.parametrize(
    ("lease", "seen", "move"),
    [
        pytest.param(None, None, Create(), id="there is none"),
        pytest.param(held(""), None, TakeOver(), id="given back"),
        pytest.param(held(None), None, TakeOver(), id="never held"),
        pytest.param(held("me"), None, TakeOver(), id="mine already"),
        pytest.param(held("you"), None, Wait("you"), id="just seen, however old its own clock says it is"),
        pytest.param(held("you"), Sighting("7", 85.1), Wait("you"), id="seen for less than its duration"),
        pytest.param(held("you"), Sighting("7", 85.0), TakeOver(), id="seen unchanged for its duration"),
        pytest.param(held("you", "8"), Sighting("7", 0.0), Wait("you"), id="renewed since"),
        pytest.param(held("you", seconds=None), Sighting("7", 99.9), TakeOver(), id="held without a duration"),
    ],
)
def test_a_lease_is_taken_over_only_when_it_is_free_or_abandoned(
    lease: Lease | None, seen: Sighting | None, move: Move
) -> None:
    assert consider(lease, seen, "me", now=100.0)[0] == move


def test_the_time_of_the_first_sighting_is_kept() -> None:
    _, first = consider(held("you"), None, "me", now=10.0)
    _, second = consider(held("you"), first, "me", now=20.0)
    assert second == Sighting("7", 10.0)
    _, third = consider(held("you", "8"), second, "me", now=20.0)
    assert third == Sighting("8", 20.0)


def test_the_right_to_write_ends_by_itself() -> None:
    now = 100.0
    leadership = Leadership(lambda: now)
    assert not leadership.still_leading()
    leadership.extend(110.0)
    assert leadership.remaining() == 10.0
    now = 110.0
    assert not leadership.still_leading()
    leadership.extend(120.0)
    leadership.end()
    assert not leadership.still_leading()


@pytest.mark.parametrize("timing", [(15, 15, 2), (10, 15, 2), (15, 10, 5), (15, 10, 0)])
def test_times_that_could_make_two_leaders_are_refused(timing: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must outlast"):
        Timing(*timing)


def test_the_clock_runs() -> None:
    assert uninterrupted() <= uninterrupted()
