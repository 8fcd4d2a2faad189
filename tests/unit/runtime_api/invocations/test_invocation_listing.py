"""The invocation list reads its sources in order, and a continue token is valid for the same query only."""

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
    ("state", "sources"),
    [
        (UNSET, ("invoke", "dispatch", "stored")),
        (InvocationState.QUEUED, ("invoke", "dispatch")),
        (InvocationState.RUNNING, ("invoke", "dispatch")),
        (InvocationState.EXPIRED, ("stored",)),
    ],
)
def test_sources_of_a_list_depend_on_the_state_filter(state: Any, sources: tuple[str, ...]) -> None:
    assert sources_for(query(state)) == sources
    visited = [start_position(query(state))[0]]
    while (position := next_position(visited[-1], query(state))) is not None:
        visited.append(position[0])
    assert tuple(visited) == sources


def test_continue_token_sets_the_start_position() -> None:
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
    with pytest.raises(Invalid, match="continue: belongs to another query"):
        start_position(query(state, encode_cursor(position)))
