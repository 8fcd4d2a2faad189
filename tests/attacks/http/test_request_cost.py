"""No body of a route's maximum size keeps the event loop busy for long, or costs much more than a valid body.

`make request-costs BODIES=2000` searches with more bodies, and prints the most expensive bodies of each route.
"""

import os
import random
from itertools import islice

import pytest

from tests.attacks.http.hostile_bodies import hostile_bodies
from tests.attacks.http.request_cost import ADMISSIONS, BODY_ROUTES, cpu_seconds, handle, valid_body

BODIES = int(os.environ.get("REQUEST_COST_BODIES", "80"))
SEED = int(os.environ.get("REQUEST_COST_SEED") or random.randrange(1_000_000))  # noqa: S311 - not for security
MAX_SECONDS = 0.1
CHEAP_SECONDS = 0.01
MAX_RATIO = 8
REPEATED_ABOVE_SECONDS = 0.005
"""A body that costs more is measured several times: the garbage collector may have run during the first time."""


def test_every_route_with_a_body_is_measured() -> None:
    assert {*BODY_ROUTES} == {*ADMISSIONS}


@pytest.mark.parametrize("name", BODY_ROUTES)
def test_no_hostile_body_blocks_the_event_loop(name: str) -> None:
    route = BODY_ROUTES[name]
    assert route.body is not None
    assert handle(route, valid_body(route)) is None
    valid = cpu_seconds(route, valid_body(route), times=9)
    costs: list[tuple[float, str]] = []
    for shape, raw in islice(hostile_bodies(route.body, route.max_body_bytes, SEED), BODIES):
        seconds = cpu_seconds(route, raw)
        if seconds > REPEATED_ABOVE_SECONDS:
            seconds = cpu_seconds(route, raw, times=5)
        costs.append((seconds, shape))
    worst = sorted(costs, reverse=True)[:3]
    print(f"\n{name}: {len(costs)} bodies of {route.max_body_bytes} bytes, seed {SEED}; valid {valid * 1000:.2f} ms")
    for seconds, shape in worst:
        print(f"  {seconds * 1000:6.2f} ms  {shape[:100]}")
    seconds, shape = worst[0]
    assert seconds < MAX_SECONDS, f"seed {SEED}: {shape}"
    assert seconds < CHEAP_SECONDS or seconds < MAX_RATIO * valid, f"seed {SEED}: {shape}"
