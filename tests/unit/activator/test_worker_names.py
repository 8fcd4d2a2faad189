"""Worker names are valid and unique, and free slots are found in ascending order."""

from gpu_runtime.activator.worker_names import free_slots, worker_name
from gpu_runtime.contract.validation import name_errors


def test_worker_names_are_valid_and_unique_for_long_function_names() -> None:
    functions = ["f", "a" * 57, "a" * 58, "a" * 63, "a" * 62 + "b", "a-" * 31 + "a"]
    names = [worker_name(function, slot) for function in functions for slot in (0, 9999)]
    assert len(set(names)) == len(names)
    assert [error for name in names for error in name_errors(name)] == []
    assert worker_name("f", 3) == "f-w3"


def test_lowest_free_slots_are_used_first() -> None:
    taken = {"f-w0", "f-w2"}
    assert free_slots("f", 5, 2, taken.__contains__) == [1, 3]


def test_slots_never_exceed_max_workers() -> None:
    assert free_slots("f", 2, 9, lambda _name: False) == [0, 1]


def test_name_of_a_foreign_unit_is_skipped() -> None:
    assert free_slots("f", 2, 2, {"f-w0"}.__contains__, foreign=1) == [1, 2]
