"""Which failed requests are retried, after which delay, and how responses map to errors."""

import pytest

from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.errors import (
    ApiStatus,
    KubeAlreadyExists,
    KubeApiError,
    KubeConflict,
    KubeError,
    KubeForbidden,
    KubeInvalid,
    KubeNoKindMatch,
    KubeNotFound,
    KubeResourceExpired,
    KubeServerError,
    KubeTooManyRequests,
    KubeUnauthorized,
    KubeUnreachable,
    error_from_response,
    error_from_status,
)
from gpu_runtime.kube.retry import RetryPolicy

POLICY = RetryPolicy(max_attempts=3, backoff=Backoff(initial_seconds=0.5, jitter=0.0), max_retry_after_seconds=10)


@pytest.mark.parametrize(
    ("error", "retried", "retried_if_idempotent"),
    [
        (KubeUnreachable("refused", sent=False), True, True),
        (KubeUnreachable("timeout", sent=True), False, True),
        (error_from_response(429, b"", "1"), True, True),
        (error_from_response(429, b""), True, True),
        (error_from_response(503, b"", "1"), True, True),
        (error_from_response(503, b""), False, True),
        (error_from_response(500, b""), False, True),
        (error_from_response(504, b""), False, True),
        (error_from_response(501, b""), False, False),
        (error_from_response(409, b""), False, False),
        (error_from_response(404, b""), False, False),
        (error_from_response(401, b""), False, False),
    ],
)
def test_only_safe_requests_are_retried(error: KubeError, retried: bool, retried_if_idempotent: bool) -> None:
    assert (POLICY.delay(error, 1, idempotent=False) is not None) == retried
    assert (POLICY.delay(error, 1, idempotent=True) is not None) == retried_if_idempotent


def test_retry_after_is_honored_up_to_a_limit() -> None:
    assert POLICY.delay(error_from_response(429, b"", "3"), 1, idempotent=True) == 3
    assert POLICY.delay(error_from_response(429, b"", "11"), 1, idempotent=True) is None
    assert POLICY.delay(error_from_response(429, b"", "0"), 2, idempotent=True) == 1.0
    status = b'{"kind":"Status","code":429,"details":{"retryAfterSeconds":2}}'
    assert POLICY.delay(error_from_response(429, status), 1, idempotent=True) == 2
    assert POLICY.delay(error_from_response(429, b"", "Wed, 21 Oct 2026 07:28:00 GMT"), 1, idempotent=True) == 0.5


def test_retries_stop_at_max_attempts() -> None:
    assert POLICY.delay(KubeUnreachable("away", sent=False), 2, idempotent=True) == 1.0
    assert POLICY.delay(KubeUnreachable("away", sent=False), 3, idempotent=True) is None


def test_retry_delay_doubles_to_a_limit_with_jitter() -> None:
    backoff = Backoff(initial_seconds=1, max_seconds=60, jitter=0.5)
    assert [backoff.delay(n, lambda: 0.5) for n in (1, 2, 3, 7, 10_000)] == [1, 2, 4, 60, 60]
    assert backoff.delay(1, lambda: 0.0) == 0.5
    assert backoff.delay(1, lambda: 1.0) == 1.5


@pytest.mark.parametrize(
    ("code", "reason", "error_class"),
    [
        (400, "BadRequest", KubeInvalid),
        (401, "Unauthorized", KubeUnauthorized),
        (403, "Forbidden", KubeForbidden),
        (404, "NotFound", KubeNotFound),
        (409, "AlreadyExists", KubeAlreadyExists),
        (409, "Conflict", KubeConflict),
        (410, "Expired", KubeResourceExpired),
        (410, "Gone", KubeResourceExpired),
        (422, "Invalid", KubeInvalid),
        (429, "TooManyRequests", KubeTooManyRequests),
        (500, "InternalError", KubeServerError),
        (504, "Timeout", KubeServerError),
        (418, "", KubeApiError),
    ],
)
def test_status_responses_map_to_error_classes(code: int, reason: str, error_class: type[KubeApiError]) -> None:
    error = error_from_status(ApiStatus(code=code, reason=reason, message="why"))
    assert type(error) is error_class
    assert str(error) == "why"


def test_404_of_an_unserved_path_is_no_kind_match() -> None:
    error = error_from_response(404, b"404 page not found\n")
    assert type(error) is KubeNoKindMatch
    assert str(error) == "404 page not found"


def test_status_causes_are_preserved() -> None:
    body = b'{"code":422,"reason":"Invalid","details":{"causes":[{"field":"spec.size","message":"must grow"}]}}'
    (cause,) = error_from_response(422, body).causes
    assert (cause.field, cause.message) == ("spec.size", "must grow")
