"""What may be sent again, and when."""

import pytest

from gpu_runtime.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    NotServed,
    ServerFailure,
    Status,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    refusal,
    refused,
)
from gpu_runtime.kube.retry import Backoff, RetryPolicy

POLICY = RetryPolicy(attempts=3, backoff=Backoff(first=0.5, spread=0.0), patience=10)


@pytest.mark.parametrize(
    ("error", "for_any", "for_repeatable"),
    [
        (Unreachable("refused", sent=False), True, True),
        (Unreachable("timeout", sent=True), False, True),
        (refusal(429, b"", "1"), True, True),
        (refusal(429, b""), True, True),
        (refusal(503, b"", "1"), True, True),
        (refusal(503, b""), False, True),
        (refusal(500, b""), False, True),
        (refusal(504, b""), False, True),
        (refusal(501, b""), False, False),
        (refusal(409, b""), False, False),
        (refusal(404, b""), False, False),
        (refusal(401, b""), False, False),
    ],
)
def test_only_what_is_safe_is_sent_again(error: KubeError, for_any: bool, for_repeatable: bool) -> None:
    assert (POLICY.delay(error, 1, repeatable=False) is not None) == for_any
    assert (POLICY.delay(error, 1, repeatable=True) is not None) == for_repeatable


def test_the_servers_wish_for_patience_is_honoured_up_to_a_limit() -> None:
    assert POLICY.delay(refusal(429, b"", "3"), 1, repeatable=True) == 3
    assert POLICY.delay(refusal(429, b"", "11"), 1, repeatable=True) is None
    assert POLICY.delay(refusal(429, b"", "0"), 2, repeatable=True) == 1.0
    in_words = b'{"kind":"Status","code":429,"details":{"retryAfterSeconds":2}}'
    assert POLICY.delay(refusal(429, in_words), 1, repeatable=True) == 2
    assert POLICY.delay(refusal(429, b"", "Wed, 21 Oct 2026 07:28:00 GMT"), 1, repeatable=True) == 0.5


def test_attempts_end() -> None:
    assert POLICY.delay(Unreachable("away", sent=False), 2, repeatable=True) == 1.0
    assert POLICY.delay(Unreachable("away", sent=False), 3, repeatable=True) is None


def test_waits_double_up_to_a_limit_and_are_spread_by_chance() -> None:
    backoff = Backoff(first=1, longest=60, spread=0.5)
    assert [backoff.delay(n, lambda: 0.5) for n in (1, 2, 3, 7, 10_000)] == [1, 2, 4, 60, 60]
    assert backoff.delay(1, lambda: 0.0) == 0.5
    assert backoff.delay(1, lambda: 1.0) == 1.5


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Expired),
        (410, "Gone", Expired),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ServerFailure),
        (504, "Timeout", ServerFailure),
        (418, "", ApiError),
    ],
)
def test_refusals_become_their_error(code: int, reason: str, kind: type[ApiError]) -> None:
    error = refused(Status(code=code, reason=reason, message="why"))
    assert type(error) is kind
    assert str(error) == "why"


def test_a_path_that_is_not_served_is_not_taken_for_a_missing_object() -> None:
    error = refusal(404, b"404 page not found\n")
    assert type(error) is NotServed
    assert str(error) == "404 page not found"


def test_the_fields_at_fault_are_kept() -> None:
    body = b'{"code":422,"reason":"Invalid","details":{"causes":[{"field":"spec.size","message":"must grow"}]}}'
    (cause,) = refusal(422, body).causes
    assert (cause.field, cause.message) == ("spec.size", "must grow")


def test_an_apply_of_an_unknown_field_is_the_callers_fault_although_the_server_says_it_is_its_own() -> None:
    words = (
        b'{"code":500,"message":"failed to create typed patch object (ns/a): .spec.x: field not declared in schema"}'
    )
    error = refusal(500, words)
    assert type(error) is Invalid
    assert POLICY.delay(error, 1, repeatable=True) is None
