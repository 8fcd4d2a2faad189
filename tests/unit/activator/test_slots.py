"""Names of workers, and which of them are free."""

from gpu_runtime.activator.worker_names import free_slots, worker_name
from gpu_runtime.contract.validation import name_problems


def test_names_are_valid_and_differ_however_long_the_functions_name_is() -> None:
    functions = ["f", "a" * 57, "a" * 58, "a" * 63, "a" * 62 + "b", "a-" * 31 + "a"]
    names = [worker_name(function, slot) for function in functions for slot in (0, 9999)]
    assert len(set(names)) == len(names)
    assert [problem for name in names for problem in name_problems(name)] == []
    assert worker_name("f", 3) == "f-w3"


def test_the_lowest_free_slots_are_used_first() -> None:
    taken = {"f-w0", "f-w2"}
    assert free_slots("f", 5, 2, taken.__contains__) == [1, 3]


def test_there_are_no_more_slots_than_workers_allowed() -> None:
    assert free_slots("f", 2, 9, lambda _name: False) == [0, 1]


def test_a_name_that_is_anothers_makes_way_for_a_higher_one() -> None:
    assert free_slots("f", 2, 2, {"f-w0"}.__contains__, foreign=1) == [1, 2]
