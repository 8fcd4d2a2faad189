"""What goes wrong is decided by the seed alone."""

from collections import Counter

from tests.chaos.plan import DECK, PER_ROUND, Fault, plan

ROUNDS = -(-len(DECK) // PER_ROUND)
"""After so many of them every fault was there."""


def of(seed: int) -> list[Fault]:
    return [fault for number in range(1, ROUNDS + 1) for fault in plan(seed, number)]


def test_a_plan_is_a_function_of_its_seed_and_round() -> None:
    assert of(7) == of(7)
    assert of(7) != of(8)
    assert plan(7, 1) != plan(7, 2)


def test_a_round_is_the_same_whether_or_not_the_rounds_before_it_happen() -> None:
    alone = plan(7, 3)
    assert [plan(7, number) for number in (1, 2, 3)][-1] == alone


def test_a_few_rounds_have_every_fault() -> None:
    for seed in range(20):
        assert {(fault.kind, fault.target) for fault in of(seed)} == set(DECK)


def test_faults_overlap_but_never_more_than_two_of_them() -> None:
    at_once: Counter[int] = Counter()
    for seed in range(20):
        for number in range(1, ROUNDS + 1):
            faults = plan(seed, number)
            assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
            for fault in faults:
                at_once[sum(other.at <= fault.at < other.ends for other in faults)] += 1
    assert set(at_once) == {0, 1, 2}
