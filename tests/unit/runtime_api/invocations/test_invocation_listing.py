"""A list goes from place to place, and a page begins where the one before ended, for the same question."""

from typing import Any

import pytest
from msgspec import UNSET

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.runtime_api.http.paging import encode_cursor
from gpu_runtime.runtime_api.invocations.listing import next_position, sources_for, start_position
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
def test_sources_of_a_list_depend_on_the_state_filter(state: Any, where: tuple[str, ...]) -> None:
    assert sources_for(query(state)) == where
    walked = [start_position(query(state))[0]]
    while (following := next_position(walked[-1], query(state))) is not None:
        walked.append(following[0])
    assert tuple(walked) == where


def test_a_page_begins_where_the_last_one_ended() -> None:
    assert start_position(query(after=encode_cursor(("dispatch", "17")))) == ("dispatch", "17")
    assert start_position(query(after=encode_cursor(("stored", "any thing")))) == ("stored", "any thing")


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
def test_continue_token_of_another_query_is_rejected(state: Any, position: tuple[str, str]) -> None:
    with pytest.raises(Invalid, match="continue: is of another question"):
        start_position(query(state, encode_cursor(position)))
