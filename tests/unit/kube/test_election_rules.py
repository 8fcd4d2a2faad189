"""When a candidate may acquire a Lease, and how long a leader may write."""

import pytest

from gpu_runtime.kube.builtin_kinds import Lease, LeaseSpec
from gpu_runtime.kube.election import (
    AcquireLease,
    CreateLease,
    LeaderElectionConfig,
    Leadership,
    LeaseAction,
    ObservedLease,
    StandBy,
    boottime_seconds,
    next_lease_action,
)
from gpu_runtime.kube.meta import ObjectMeta


def lease_held_by(holder: str | None, version: str = "7", seconds: int | None = 15) -> Lease:
    spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=seconds, renew_time="2001-01-01T00:00:00.000000Z")
    return Lease(metadata=ObjectMeta(name="lead", resource_version=version), spec=spec)


@pytest.mark.parametrize(
    ("lease", "observed", "action"),
    [
        pytest.param(None, None, CreateLease(), id="no lease"),
        pytest.param(lease_held_by(""), None, AcquireLease(), id="released"),
        pytest.param(lease_held_by(None), None, AcquireLease(), id="never held"),
        pytest.param(lease_held_by("me"), None, AcquireLease(), id="already held by this candidate"),
        pytest.param(lease_held_by("you"), None, StandBy("you"), id="first observation, with an old renewTime"),
        pytest.param(
            lease_held_by("you"), ObservedLease("7", 85.1), StandBy("you"), id="unchanged for less than its duration"
        ),
        pytest.param(lease_held_by("you"), ObservedLease("7", 85.0), AcquireLease(), id="unchanged for its duration"),
        pytest.param(lease_held_by("you", "8"), ObservedLease("7", 0.0), StandBy("you"), id="renewed since"),
        pytest.param(
            lease_held_by("you", seconds=None), ObservedLease("7", 99.9), AcquireLease(), id="held without a duration"
        ),
    ],
)
def test_lease_is_acquired_only_when_released_or_expired(
    lease: Lease | None, observed: ObservedLease | None, action: LeaseAction
) -> None:
    assert next_lease_action(lease, observed, "me", now=100.0)[0] == action


def test_first_observation_time_of_a_lease_version_is_preserved() -> None:
    _, first = next_lease_action(lease_held_by("you"), None, "me", now=10.0)
    _, second = next_lease_action(lease_held_by("you"), first, "me", now=20.0)
    assert second == ObservedLease("7", 10.0)
    _, third = next_lease_action(lease_held_by("you", "8"), second, "me", now=20.0)
    assert third == ObservedLease("8", 20.0)


def test_leadership_expires_without_renewal() -> None:
    now = 100.0
    leadership = Leadership(lambda: now)
    assert not leadership.is_leader()
    leadership.extend(110.0)
    assert leadership.remaining() == 10.0
    now = 110.0
    assert not leadership.is_leader()
    leadership.extend(120.0)
    leadership.end()
    assert not leadership.is_leader()


@pytest.mark.parametrize("seconds", [(15, 15, 2), (10, 15, 2), (15, 10, 5), (15, 10, 0)])
def test_election_config_that_allows_two_leaders_is_rejected(seconds: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="lease_duration must be longer than renew_deadline"):
        LeaderElectionConfig(*seconds)


def test_election_clock_advances() -> None:
    assert boottime_seconds() <= boottime_seconds()
