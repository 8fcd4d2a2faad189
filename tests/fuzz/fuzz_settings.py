"""The number of cases and the seed of the fuzz tests, from FUZZ_CASES and FUZZ_SEED. `make fuzz` sets both.

Without them, a run is short and always the same. A failure reports the seed and the smallest failing case.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase

CASE_COUNT = int(os.environ.get("FUZZ_CASES", "0"))
"""The number of cases of each test. 0 uses the small default of the test."""

FUZZ_SEED = int(os.environ.get("FUZZ_SEED", "0"))

T = TypeVar("T")
Rejection = TypeVar("Rejection", bound=Exception)
Test = TypeVar("Test", bound=Callable[..., Any])


def case_count(default: int) -> int:
    return CASE_COUNT or default


def settings(default: int, per_example: int = 1, shrinks: bool = True) -> hypothesis.settings:
    """Hypothesis settings for the number of cases of this run. One example of the test contains `per_example` cases.

    Tests that wait for a cluster disable shrinking: every shrink attempt would wait again, and the unshrunk example is
    sufficient.
    """
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if shrinks else [])]
    return hypothesis.settings(
        max_examples=-(-case_count(default) // per_example),
        database=None,
        deadline=None,
        print_blob=True,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )


def fuzzed(default: int, per_example: int = 1, shrinks: bool = True) -> Callable[[Test], Test]:
    """Decorator for a test with `@given` that applies the seed and the number of cases of this run."""

    def wrap(test: Test) -> Test:
        seeded = hypothesis.seed(FUZZ_SEED)(settings(default, per_example, shrinks)(test))

        @functools.wraps(seeded)
        def run(*args: Any, **kwargs: Any) -> None:
            with replay_hint():
                seeded(*args, **kwargs)

        return run  # type: ignore[return-value]

    return wrap


def call_or_rejection(
    rejection_type: type[Rejection], call: Callable[[], T]
) -> tuple[T, None] | tuple[None, Rejection]:
    """The result of the call, or the rejection that it raised. Every other exception is a bug and propagates."""
    try:
        return call(), None
    except rejection_type as rejection:
        return None, rejection


class replay_hint:  # noqa: N801 - used like a function in `with`
    """A context that adds the command for a replay to an exception."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            error.add_note(
                f"To replay this failure: make fuzz SEED={FUZZ_SEED} CASES={CASE_COUNT} ARGS='-k <this test>'."
            )
