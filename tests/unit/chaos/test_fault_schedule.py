"""The schedule of faults depends only on the seed and the round number."""

from collections import Counter

from tests.chaos.fault_schedule import ALL_FAULTS, FAULTS_PER_ROUND, Fault, schedule_faults

ROUNDS = -(-len(ALL_FAULTS) // FAULTS_PER_ROUND)
"""The number of rounds after which every fault has occurred."""


def schedule_of(seed: int) -> list[Fault]:
    return [fault for number in range(1, ROUNDS + 1) for fault in schedule_faults(seed, number)]


def test_schedule_is_a_function_of_seed_and_round() -> None:
    assert schedule_of(7) == schedule_of(7)
    assert schedule_of(7) != schedule_of(8)
    assert schedule_faults(7, 1) != schedule_faults(7, 2)


def test_schedule_of_a_round_does_not_depend_on_earlier_rounds() -> None:
    alone = schedule_faults(7, 3)
    assert [schedule_faults(7, number) for number in (1, 2, 3)][-1] == alone


def test_every_fault_occurs_within_a_few_rounds() -> None:
    for seed in range(20):
        assert {(fault.kind, fault.target) for fault in schedule_of(seed)} == set(ALL_FAULTS)


def test_at_most_two_faults_overlap() -> None:
    active_faults: Counter[int] = Counter()
    for seed in range(20):
        for number in range(1, ROUNDS + 1):
            faults = schedule_faults(seed, number)
            assert [fault.start_seconds for fault in faults] == sorted(fault.start_seconds for fault in faults)
            for fault in faults:
                active = sum(other.start_seconds <= fault.start_seconds < other.end_seconds for other in faults)
                active_faults[active] += 1
    assert set(active_faults) == {0, 1, 2}
