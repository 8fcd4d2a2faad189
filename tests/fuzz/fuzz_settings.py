"""How many cases a fuzz test has and which ones: FUZZ_CASES and FUZZ_SEED say it, and `make fuzz` sets them.

Without them a run is short and the same every time. A failure names the seed and the smallest case that was found.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase

CASE_COUNT = int(os.environ.get("FUZZ_CASES", "0"))
"""How many of each surface. 0: as few as the surface says itself."""

FUZZ_SEED = int(os.environ.get("FUZZ_SEED", "0"))

T = TypeVar("T")
Refusal = TypeVar("Refusal", bound=Exception)
Test = TypeVar("Test", bound=Callable[..., Any])


def case_count(few: int) -> int:
    return CASE_COUNT or few


def settings(few: int, each: int = 1, shrinks: bool = True) -> hypothesis.settings:
    """So many cases, of which one example of the test holds `each`.

    What waits for a cluster is not made smaller: every try would wait again, and a whole example says enough.
    """
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if shrinks else [])]
    return hypothesis.settings(
        max_examples=-(-case_count(few) // each),
        database=None,
        deadline=None,
        print_blob=True,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )


def fuzzed(few: int, each: int = 1, shrinks: bool = True) -> Callable[[Test], Test]:
    """Makes a property out of a test with `@given`, with the cases of this run."""

    def wrap(test: Test) -> Test:
        seeded = hypothesis.seed(FUZZ_SEED)(settings(few, each, shrinks)(test))

        @functools.wraps(seeded)
        def run(*args: Any, **kwargs: Any) -> None:
            with replay_hint():
                seeded(*args, **kwargs)

        return run  # type: ignore[return-value]

    return wrap


def call_or_rejection(kind: type[Refusal], call: Callable[[], T]) -> tuple[T, None] | tuple[None, Refusal]:
    """What came of it, or the refusal of this kind. Whatever else is raised is a defect."""
    try:
        return call(), None
    except kind as refusal:
        return None, refusal


class replay_hint:  # noqa: N801 - it reads as a word
    """Whoever fails in here says how to see it again."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            error.add_note(
                f"To see it again: make fuzz SEED={FUZZ_SEED} CASES={CASE_COUNT}, with ARGS='-k <this test>'."
            )
