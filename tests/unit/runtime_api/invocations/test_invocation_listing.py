"""A list goes from place to place, and a page begins where the one before ended, for the same question."""

from typing import Any

import pytest
from msgspec import UNSET

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.runtime_api.http.paging import cursor
from gpu_runtime.runtime_api.invocations.listing import beginning, next_place, places
from gpu_runtime.runtime_api.invocations.requests import InvocationState, ListInvocations


def query(state: Any = UNSET, after: str | None = None) -> ListInvocations:
    return ListInvocations(serverless_request_id="f", state=state, after=after)


@pytest.mark.parametrize(
    ("state", "where"),
    [
        (UNSET, ("invoke", "dispatch", "stored")),
        (InvocationState.QUEUED, ("invoke", "dispatch")),
        (InvocationState.RUNNING, ("invoke", "dispatch")),
        (InvocationState.EXPIRED, ("stored",)),
    ],
)
def test_what_is_asked_for_is_looked_for_where_it_can_be(state: Any, where: tuple[str, ...]) -> None:
    assert places(query(state)) == where
    walked = [beginning(query(state))[0]]
    while (following := next_place(walked[-1], query(state))) is not None:
        walked.append(following[0])
    assert tuple(walked) == where


def test_a_page_begins_where_the_last_one_ended() -> None:
    assert beginning(query(after=cursor(("dispatch", "17")))) == ("dispatch", "17")
    assert beginning(query(after=cursor(("stored", "any thing")))) == ("stored", "any thing")


@pytest.mark.parametrize(
    ("state", "position"),
    [
        (InvocationState.QUEUED, ("stored", "")),
        (InvocationState.FAILED, ("invoke", "1")),
        (UNSET, ("invoke", "x")),
        (UNSET, ("invoke", "²")),
        (UNSET, ("invoke", "-1")),
        (UNSET, ("nowhere", "")),
    ],
)
def test_a_position_of_another_question_is_refused(state: Any, position: tuple[str, str]) -> None:
    with pytest.raises(Invalid, match="continue: is of another question"):
        beginning(query(state, cursor(position)))
