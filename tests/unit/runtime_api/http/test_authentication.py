"""Bearer tokens identify callers, and an error never authenticates a caller."""

import base64
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_runtime.contract.errors import Unauthenticated, Unavailable
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeUnreachable
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.process.settings import InvalidSettings
from gpu_runtime.runtime_api.http.authentication import (
    BearerAuthenticator,
    TokenFile,
    build_authenticator,
    parse_bearer_token,
)
from gpu_runtime.runtime_api.http.route import ANONYMOUS, Caller, Scope
from gpu_runtime.runtime_api.http.token_review import (
    TOKEN_REVIEWS,
    ReviewedUser,
    ReviewStatus,
    TokenReview,
    TokenReviewer,
    decode_claims,
    service_account_key,
)
from gpu_runtime.runtime_api.settings import AuthenticationSettings, ServiceAccountScopeSettings

ALICE, BOB = "alice-alice-alice", "bob-bob-bob-bob-bob"


def tokens(**named: str) -> str:
    return yaml.safe_dump({"tokens": [{"name": n, "token": t, "scopes": ["runtime"]} for n, t in named.items()]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    path.write_text(tokens(alice=ALICE, bob=BOB))
    return path


def test_token_from_the_file_identifies_the_caller(path: Path) -> None:
    token_file = TokenFile(path)
    assert token_file.find_caller(BOB) == Caller("token:bob", frozenset({Scope.RUNTIME}))
    assert token_file.find_caller(BOB + "x") is None
    assert token_file.find_caller("ä\udcff") is None


INVALID_FILES = {
    "a short token": (tokens(alice="short-secret"), r"tokens\[0\] \(alice\): token has 12 characters; use at least 16"),
    "two tokens with one name": (
        f"tokens: [{{name: a, token: {ALICE}, scopes: [runtime]}}, {{name: a, token: {BOB}, scopes: [runtime]}}]",
        r"tokens\[1\] \(a\): another token has the same name",
    ),
    "one token with two names": (tokens(a=ALICE, b=ALICE), r"tokens\[1\] \(b\): another entry has the same token"),
    "a token with spaces": (tokens(a="with spaces inside it"), "token has characters that are not allowed in a header"),
    "an unknown scope": (
        f"tokens: [{{name: a, token: {ALICE}, scopes: [root]}}]",
        r"tokens\[0\]\.scopes\[0\]: 'root' is not one of operator, runtime",
    ),
    "no scope": (f"tokens: [{{name: a, token: {ALICE}, scopes: []}}]", r"tokens\[0\]\.scopes: expected"),
    "an unknown key": (
        f"tokens: [{{name: a, tokn: {ALICE}, scopes: [runtime]}}]",
        r"tokens\[0\]\.tokn is not a setting; did you mean token\?",
    ),
    "a number for a token": (
        "tokens: [{name: a, token: 1234567890123456, scopes: [runtime]}]",
        r"tokens\[0\]\.token: expected str, got int",
    ),
    "not YAML": (f"tokens: [{{name: {ALICE}", "not YAML: line 1, column"),
}


@pytest.mark.parametrize(("text", "message"), INVALID_FILES.values(), ids=INVALID_FILES)
def test_invalid_token_file_error_contains_no_token(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(InvalidSettings, match=message) as raised:
        TokenFile(path)
    assert not any(secret in str(raised.value) for secret in (ALICE, BOB, "short-secret", "with spaces"))


def test_changed_token_file_is_reloaded(path: Path) -> None:
    token_file = TokenFile(path)
    path.write_text(tokens(carol=ALICE))
    token_file.reload_if_changed()
    assert token_file.find_caller(ALICE) == Caller("token:carol", frozenset({Scope.RUNTIME}))
    assert token_file.find_caller(BOB) is None


def test_token_file_behind_a_swapped_symlink_is_reloaded(tmp_path: Path) -> None:
    for version, holder in (("v1", "alice"), ("v2", "bob")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "tokens.yaml").write_text(tokens(**{holder: ALICE}))
    os.utime(tmp_path / "v2" / "tokens.yaml", (0, 0))  # older than the first file
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "tokens.yaml").symlink_to("..data/tokens.yaml")
    token_file = TokenFile(tmp_path / "tokens.yaml")
    (tmp_path / "..new").symlink_to("v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    token_file.reload_if_changed()
    caller = token_file.find_caller(ALICE)
    assert caller
    assert caller.name == "token:bob"


@pytest.mark.parametrize("make_invalid", [lambda path: path.write_text("tokens: 3"), lambda path: path.unlink()])
def test_invalid_reloaded_token_file_preserves_the_old_tokens(
    path: Path, make_invalid: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    token_file = TokenFile(path)
    make_invalid(path)
    token_file.reload_if_changed()
    token_file.reload_if_changed()
    assert token_file.find_caller(ALICE)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.message == "token file reload failed; the previous tokens stay valid"
    assert str(path) in vars(record)["error"]


@pytest.mark.parametrize("header", [None, "", "good", "Basic Z29vZA==", "Bearer", "Bearer  ", f"Bearer {'x' * 20_000}"])
def test_missing_or_malformed_bearer_token_is_rejected_with_the_remedy(header: str | None) -> None:
    with pytest.raises(Unauthenticated, match="send 'Authorization: Bearer TOKEN'"):
        parse_bearer_token(header)


def test_bearer_scheme_is_case_insensitive() -> None:
    assert parse_bearer_token("bEARER abc") == "abc"


class FakeTokenReviews(KubeClient):
    """An API server that reviews tokens. It accepts those whose signature is in `usernames_by_signature`."""

    def __init__(self, **usernames_by_signature: str) -> None:
        self.usernames_by_signature = usernames_by_signature
        self.review_count = 0
        self.unreachable = False

    async def create(self, resource: Any, manifest: Any) -> Any:
        assert resource is TOKEN_REVIEWS
        self.review_count += 1
        if self.unreachable:
            raise KubeUnreachable("connection refused", sent=False)
        user = self.usernames_by_signature.get(manifest["spec"]["token"].split(".")[2])
        if user is None:
            return TokenReview()
        audiences = tuple(manifest["spec"]["audiences"])
        status = ReviewStatus(authenticated=True, user=ReviewedUser(username=user), audiences=audiences)
        return TokenReview(status=status)


def service_account_token(signature: str, exp: float = 1000.0, aud: Any = ("gpu-runtime",), sub: str = "") -> str:
    claims = {"exp": exp, "aud": aud, "sub": sub or "system:serviceaccount:shop:web"}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.{signature}"


class FakeClock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def reviewer(client: KubeClient, clock: FakeClock) -> TokenReviewer:
    return TokenReviewer(client, ["gpu-runtime"], {ObjectKey("shop", "web"): frozenset({Scope.RUNTIME})}, clock)


WEB = "system:serviceaccount:shop:web"


async def test_service_account_token_identifies_the_caller_and_its_scopes() -> None:
    cached_reviewer = reviewer(FakeTokenReviews(web=WEB, other="system:serviceaccount:shop:other"), FakeClock())
    assert await cached_reviewer.find_caller(service_account_token("web")) == Caller(
        "serviceaccount:shop/web", frozenset({Scope.RUNTIME})
    )
    assert await cached_reviewer.find_caller(service_account_token("other")) == Caller(
        "serviceaccount:shop/other", frozenset()
    )
    assert await cached_reviewer.find_caller(service_account_token("forged")) is None


async def test_token_review_is_cached_for_60_s_and_a_rejection_for_5_s() -> None:
    client, clock = FakeTokenReviews(web=WEB), FakeClock()
    cached_reviewer = reviewer(client, clock)
    valid, forged = service_account_token("web"), service_account_token("forged")
    for clock.time, count in ((0, 1), (59, 1), (60, 2), (119, 2), (120, 3)):
        assert await cached_reviewer.find_caller(valid)
        assert client.review_count == count
    client.review_count = 0
    for clock.time, count in ((200, 1), (204, 1), (205, 2)):
        assert await cached_reviewer.find_caller(forged) is None
        assert client.review_count == count


async def test_token_review_cache_never_outlives_the_token() -> None:
    client, clock = FakeTokenReviews(web=WEB), FakeClock()
    cached_reviewer = reviewer(client, clock)
    assert await cached_reviewer.find_caller(service_account_token("web", exp=30))
    clock.time = 30
    assert await cached_reviewer.find_caller(service_account_token("web", exp=30)) is None
    assert client.review_count == 1


IMPLAUSIBLE_TOKENS = {
    "not a JSON Web Token": "just-a-word",
    "a malformed payload": "a.!!!.c",
    "a list as payload": f"a.{base64.urlsafe_b64encode(b'[]').decode()}.c",
    "an expired token": service_account_token("web", exp=-1),
    "another audience": service_account_token("web", aud=["elsewhere"]),
    "another audience as a string": service_account_token("web", aud="elsewhere"),
    "a user instead of a service account": service_account_token("web", sub="alice@example.com"),
}


@pytest.mark.parametrize("token", IMPLAUSIBLE_TOKENS.values(), ids=IMPLAUSIBLE_TOKENS)
async def test_implausible_token_is_rejected_without_a_review(token: str) -> None:
    client = FakeTokenReviews(web=WEB)
    assert await reviewer(client, FakeClock()).find_caller(token) is None
    assert client.review_count == 0


async def test_review_without_audiences_is_not_trusted() -> None:
    class ReviewsWithoutAudiences(FakeTokenReviews):
        async def create(self, resource: Any, manifest: Any) -> Any:
            return await super().create(resource, {"spec": manifest["spec"] | {"audiences": []}})

    assert (
        await reviewer(ReviewsWithoutAudiences(web=WEB), FakeClock()).find_caller(service_account_token("web")) is None
    )


async def test_unreachable_kubernetes_makes_token_review_unavailable() -> None:
    client = FakeTokenReviews(web=WEB)
    client.unreachable = True
    cached_reviewer = reviewer(client, FakeClock())
    with pytest.raises(Unavailable, match="Kubernetes cannot review the bearer token now"):
        await cached_reviewer.find_caller(service_account_token("web"))
    client.unreachable = False
    assert await cached_reviewer.find_caller(service_account_token("web")), "a failed review must not be cached"


async def test_token_review_cache_is_bounded() -> None:
    cached_reviewer = reviewer(FakeTokenReviews(), FakeClock())
    for number in range(5000):
        await cached_reviewer.find_caller(service_account_token(f"forged-{number}"))
    assert len(cached_reviewer._reviews) == 4096


async def test_token_file_is_checked_before_kubernetes(path: Path) -> None:
    client = FakeTokenReviews(web=WEB)
    client.unreachable = True
    authenticator = BearerAuthenticator(TokenFile(path), reviewer(client, FakeClock()))
    assert (await authenticator.authenticate(f"Bearer {ALICE}")).name == "token:alice"
    with pytest.raises(Unauthenticated, match="the bearer token is unknown or no longer valid"):
        await authenticator.authenticate("Bearer unknown-unknown-unknown")
    with pytest.raises(Unavailable):
        await authenticator.authenticate(f"Bearer {service_account_token('web')}")


@pytest.mark.parametrize(
    ("username", "account"),
    [(WEB, ObjectKey("shop", "web")), ("system:node:a", None), ("system:serviceaccount:shop", None), ("", None)],
)
def test_service_account_username_is_parsed(username: str, account: ObjectKey | None) -> None:
    assert service_account_key(username) == account


def test_token_claims_are_decoded_without_padding() -> None:
    claims = decode_claims(service_account_token("x", exp=5))
    assert claims
    assert claims.exp == 5


async def test_disabled_authentication_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    authenticator, background = build_authenticator(AuthenticationSettings(mode="off"), FakeTokenReviews())
    assert await authenticator.authenticate(None) == ANONYMOUS
    assert background == ()
    [record] = caplog.records
    assert (record.levelno, "authentication is disabled" in record.message) == (logging.WARNING, True)


def test_authentication_without_any_caller_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="no caller is configured; set tokenFile or serviceAccounts"):
        build_authenticator(AuthenticationSettings(), FakeTokenReviews())
    with pytest.raises(
        InvalidSettings, match=r"none\.yaml: No such file or directory; correct the file, or the Secret"
    ):
        build_authenticator(AuthenticationSettings(token_file=str(tmp_path / "none.yaml")), FakeTokenReviews())


async def test_token_reviews_need_configured_service_accounts(path: Path) -> None:
    client = FakeTokenReviews(web=WEB)
    token = f"Bearer {service_account_token('web', exp=4e9)}"
    only_file, _ = build_authenticator(AuthenticationSettings(token_file=str(path)), client)
    with pytest.raises(Unauthenticated):
        await only_file.authenticate(token)
    assert client.review_count == 0
    trusted = (ServiceAccountScopeSettings(namespace="shop", name="web", scopes=("operator",)),)
    accounts, background = build_authenticator(AuthenticationSettings(service_accounts=trusted), client)
    assert await accounts.authenticate(token) == Caller("serviceaccount:shop/web", frozenset({Scope.OPERATOR}))
    assert background == ()
