"""The token file: its entries, its reloads, and the time for which old tokens stay valid."""

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.errors import Unauthenticated
from gpu_runtime.process.health_server import HealthWarning
from gpu_runtime.process.settings import InvalidSettings
from gpu_runtime.runtime_api.http.route import Caller, Scope
from gpu_runtime.runtime_api.http.token_entries import DIGEST_PREFIX, TokenList, new_token, parse_tokens, token_digest
from gpu_runtime.runtime_api.http.token_file import TokenFile, TokenFileMetrics
from gpu_runtime.runtime_api.settings import ScopeName

ALICE, BOB = "alice-8Zt3kQw1pXv7rN5m-c4", "bob-V2cJ6yLs9dHf4gTbE0u-q1"
NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


SHORT, FEW_CHARACTERS, SPACES = "short-secret", "0101101001101010011010101011", "with spaces inside of it, 8Zt3kQ"


def entry(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "scopes": ["runtime"], **fields}


def write(path: Path, *entries: Any) -> None:
    path.write_text(yaml.safe_dump({"tokens": list(entries)}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    write(path, entry("alice", token=ALICE), entry("bob", token=BOB))
    return path


class FakeTime:
    monotonic = 1000.0
    wall = NOW


@pytest.fixture
def clock() -> FakeTime:
    return FakeTime()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def load(path: Path, clock: FakeTime, registry: CollectorRegistry) -> Callable[[], TokenFile]:
    metrics = TokenFileMetrics(registry)
    return lambda: TokenFile(path, 300, metrics, lambda: clock.wall, lambda: clock.monotonic)


def test_token_from_the_file_identifies_the_caller(load: Callable[[], TokenFile]) -> None:
    token_file = load()
    assert token_file.find_caller(BOB) == Caller("token:bob", frozenset({Scope.RUNTIME}))
    assert token_file.find_caller(BOB + "x") is None
    assert token_file.find_caller("ä\udcff") is None


def test_settings_name_all_scopes() -> None:
    assert set(get_args(ScopeName)) == {each.value for each in Scope}


INVALID_ENTRIES: dict[str, tuple[Any, str]] = {
    "a short token": (
        entry("alice", token=SHORT),
        r"tokens\[0\] \(alice\): token has 12 characters; use at least 24",
    ),
    "a repeated token": (
        entry("a", token="my-secret-" * 5),
        r"\(a\): token can be guessed; create a random one with `gpu-runtime tokens create`",
    ),
    "a repeated token that is cut": (entry("a", token="my-secret-" * 5 + "my-sec"), "token can be guessed"),
    "a token with few characters": (entry("a", token=FEW_CHARACTERS), "token can be guessed"),
    "a token with spaces": (
        entry("a", token=SPACES),
        "token has characters that are not allowed in a header",
    ),
    "no token": (entry("a"), r"tokens\[0\] \(a\): expected either token or digest"),
    "a token and a digest": (
        entry("a", token=ALICE, digest=DIGEST_PREFIX + "0" * 64),
        "expected either token or digest",
    ),
    "a malformed digest": (entry("a", digest="sha256:" + "Z" * 64), "digest is not sha256: and 64 hexadecimal digits"),
    "a digest without its algorithm": (entry("a", digest="0" * 64), "digest is not sha256: and 64 hexadecimal digits"),
    "an expiry without a time zone": (
        entry("a", token=ALICE, expiresAt="2027-01-01T00:00:00"),
        r"tokens\[0\]\.expiresAt",
    ),
    "an expiry that is a date": (entry("a", token=ALICE, expiresAt=NOW.date()), r"tokens\[0\]\.expiresAt"),
    "an unknown scope": (
        {"name": "a", "token": ALICE, "scopes": ["root"]},
        r"tokens\[0\]\.scopes\[0\]: 'root' is not one of operator, runtime, worker",
    ),
    "a token as a scope": (
        {"name": "a", "token": BOB, "scopes": [ALICE]},
        r"'\.\.\.' is not one of operator, runtime, worker",
    ),
    "a token as a name": ({"name": ALICE * 10, "token": BOB, "scopes": ["runtime"]}, r"tokens\[0\]\.name: expected"),
    "no scope": ({"name": "a", "token": ALICE, "scopes": []}, r"tokens\[0\]\.scopes: expected"),
    "an unknown key": (
        {"name": "a", "tokn": ALICE, "scopes": ["runtime"]},
        r"tokens\[0\]\.tokn is not a setting; did you mean token\?",
    ),
    "a number for a token": (entry("a", token=1234567890123456), r"tokens\[0\]\.token: expected str, got int"),
    "a text for an entry": (ALICE, r"tokens\[0\]: expected a section with name, scopes, and token or digest"),
}
SECRETS = (ALICE, BOB, "short-secret", "with spaces", "my-secret")


@pytest.mark.parametrize(("invalid", "message"), INVALID_ENTRIES.values(), ids=INVALID_ENTRIES)
def test_file_without_a_valid_entry_is_rejected_and_the_error_contains_no_token(
    path: Path, load: Callable[[], TokenFile], invalid: Any, message: str
) -> None:
    write(path, invalid)
    with pytest.raises(InvalidSettings, match=message) as raised:
        load()
    assert not any(secret in str(raised.value) for secret in SECRETS)


@pytest.mark.parametrize("text", ["", "tokens: 3", "[]", f"tokens: [{{name: {ALICE}"])
def test_malformed_file_is_rejected_and_the_error_contains_no_token(
    path: Path, load: Callable[[], TokenFile], text: str
) -> None:
    path.write_text(text)
    with pytest.raises(InvalidSettings) as raised:
        load()
    assert ALICE not in str(raised.value)


@pytest.mark.parametrize(("invalid", "message"), INVALID_ENTRIES.values(), ids=INVALID_ENTRIES)
def test_invalid_entry_does_not_affect_the_other_entries(
    path: Path, load: Callable[[], TokenFile], invalid: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    valid = new_token()
    write(path, invalid, entry("carol", token=valid))
    token_file = load()
    assert token_file.find_caller(valid) == Caller("token:carol", frozenset({Scope.RUNTIME}))
    assert token_file.find_caller(BOB) is None
    problem = token_file.problem()
    assert isinstance(problem, HealthWarning)
    [record] = caplog.records
    assert (record.levelno, record.message) == (logging.ERROR, "token file has an invalid entry")
    assert vars(record)["error"] == problem
    assert not any(secret in problem for secret in SECRETS)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (entry("alice", token=BOB), r"tokens[1] (alice): another token has the same name; use one name per token"),
        (entry("bob", token=ALICE), r"tokens[1] (bob): another entry has the same token; use one token per caller"),
        (
            entry("bob", digest=DIGEST_PREFIX + token_digest(ALICE).hex()),
            "tokens[1] (bob): another entry has the same token; use one token per caller",
        ),
    ],
)
def test_first_of_two_entries_with_one_name_or_one_token_is_valid(second: Any, message: str) -> None:
    parsed = parse_tokens(TokenList(tokens=(entry("alice", token=ALICE), second)))
    assert [each.caller.name for each in parsed.by_digest.values()] == ["token:alice"]
    assert parsed.problems == [message]


def test_entry_with_a_digest_accepts_the_token(path: Path, load: Callable[[], TokenFile]) -> None:
    token = new_token()
    write(path, entry("carol", digest=DIGEST_PREFIX + token_digest(token).hex()))
    caller = load().find_caller(token)
    assert caller
    assert caller.name == "token:carol"
    assert load().find_caller(token_digest(token).hex()) is None


def test_expired_token_is_rejected_with_its_expiry(path: Path, load: Callable[[], TokenFile], clock: FakeTime) -> None:
    write(path, entry("alice", token=ALICE, expiresAt="2026-11-18T12:00:01Z"), entry("bob", token=BOB, expiresAt=NOW))
    token_file = load()
    assert token_file.find_caller(ALICE)
    clock.wall = NOW + timedelta(seconds=1)
    with pytest.raises(
        Unauthenticated, match=r"expired at 2026-11-18T12:00:01\+00:00; ask an operator for a new token"
    ):
        token_file.find_caller(ALICE)
    with pytest.raises(Unauthenticated, match="expired at 2026-11-18T12:00:00"):
        token_file.find_caller(BOB)


def test_metrics_show_the_states_of_tokens(
    path: Path, load: Callable[[], TokenFile], clock: FakeTime, registry: CollectorRegistry
) -> None:
    write(
        path,
        entry("never", token=new_token()),
        entry("later", token=new_token(), expiresAt=NOW + timedelta(days=8)),
        entry("soon", token=new_token(), expiresAt=NOW + timedelta(days=6)),
        entry("past", token=new_token(), expiresAt=NOW - timedelta(days=1)),
        entry("broken"),
    )
    token_file = load()
    assert states(registry) == {"valid": 2, "expires_soon": 1, "expired": 1, "invalid": 1}
    clock.wall = NOW + timedelta(days=7)
    token_file.reload_if_changed()
    assert states(registry) == {"valid": 1, "expires_soon": 1, "expired": 2, "invalid": 1}


def states(registry: CollectorRegistry) -> dict[str, float | None]:
    names = ("valid", "expires_soon", "expired", "invalid")
    return {each: registry.get_sample_value("gpu_runtime_tokens", {"state": each}) for each in names}


def test_changed_token_file_is_reloaded(path: Path, load: Callable[[], TokenFile]) -> None:
    token_file = load()
    write(path, entry("carol", token=ALICE))
    token_file.reload_if_changed()
    assert token_file.find_caller(ALICE) == Caller("token:carol", frozenset({Scope.RUNTIME}))
    assert token_file.find_caller(BOB) is None


def test_file_without_entries_revokes_all_tokens_immediately(path: Path, load: Callable[[], TokenFile]) -> None:
    token_file = load()
    write(path)
    token_file.reload_if_changed()
    assert token_file.find_caller(ALICE) is None
    assert token_file.problem() is None


def test_token_file_behind_a_swapped_symlink_is_reloaded(tmp_path: Path) -> None:
    for version, holder in (("v1", "alice"), ("v2", "bob")):
        (tmp_path / version).mkdir()
        write(tmp_path / version / "tokens.yaml", entry(holder, token=ALICE))
    os.utime(tmp_path / "v2" / "tokens.yaml", (0, 0))  # older than the first file
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "tokens.yaml").symlink_to("..data/tokens.yaml")
    token_file = TokenFile(tmp_path / "tokens.yaml", 300, TokenFileMetrics())
    (tmp_path / "..new").symlink_to("v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    token_file.reload_if_changed()
    caller = token_file.find_caller(ALICE)
    assert caller
    assert caller.name == "token:bob"


MAKE_BROKEN: dict[str, Callable[[Path], Any]] = {
    "no YAML": lambda path: path.write_text("tokens: ["),
    "no list": lambda path: path.write_text("tokens: 3"),
    "no valid entry": lambda path: write(path, entry("alice", token=SHORT)),
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("make_broken", MAKE_BROKEN.values(), ids=MAKE_BROKEN)
def test_tokens_of_a_broken_file_stay_valid_for_the_grace_period_only(  # noqa: PLR0913, PLR0917 - fixtures
    path: Path,
    load: Callable[[], TokenFile],
    clock: FakeTime,
    registry: CollectorRegistry,
    make_broken: Callable[[Path], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    token_file = load()
    make_broken(path)
    token_file.reload_if_changed()
    clock.monotonic += 300
    token_file.reload_if_changed()
    assert token_file.find_caller(ALICE)
    assert registry.get_sample_value("gpu_runtime_token_file_error") == 1
    problem = token_file.problem()
    assert isinstance(problem, HealthWarning)
    assert problem.startswith("the previous tokens stay valid for at most 300 s: ")
    clock.monotonic += 1
    assert token_file.find_caller(ALICE) is None
    assert str(token_file.problem()).startswith("no token of the file is valid: ")
    token_file.reload_if_changed()
    token_file.reload_if_changed()
    assert [(each.levelno, each.message) for each in caplog.records] == [
        (logging.ERROR, "token file reload failed; the previous tokens stay valid for a limited time"),
        (logging.ERROR, "token file is still broken; no token of the file is valid now"),
    ]
    assert str(path) in vars(caplog.records[0])["error"]


def test_corrected_file_makes_its_tokens_valid_again(
    path: Path, load: Callable[[], TokenFile], clock: FakeTime, registry: CollectorRegistry
) -> None:
    token_file = load()
    path.unlink()
    token_file.reload_if_changed()
    clock.monotonic += 1000
    token_file.reload_if_changed()
    write(path, entry("bob", token=BOB))
    token_file.reload_if_changed()
    assert token_file.find_caller(BOB)
    assert token_file.find_caller(ALICE) is None
    assert (token_file.problem(), registry.get_sample_value("gpu_runtime_token_file_error")) == (None, 0)


def test_tokens_become_invalid_if_the_file_is_no_longer_checked(load: Callable[[], TokenFile], clock: FakeTime) -> None:
    token_file = load()
    clock.monotonic += 301
    assert token_file.find_caller(ALICE) is None
    assert token_file.problem() == "no token of the file is valid: the process has not checked the file in time"
