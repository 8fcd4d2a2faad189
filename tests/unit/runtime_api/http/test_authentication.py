"""Bearer tokens identify callers, and an error never authenticates a caller."""

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_runtime.contract.errors import Unauthenticated, Unavailable
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.service_account_verifier import ServiceAccountVerifier
from gpu_runtime.process.settings import InvalidSettings
from gpu_runtime.runtime_api.http import token_review
from gpu_runtime.runtime_api.http.authentication import (
    BearerAuthenticator,
    build_authenticator,
    parse_bearer_token,
)
from gpu_runtime.runtime_api.http.route import ANONYMOUS, Caller, Scope
from gpu_runtime.runtime_api.http.token_file import TokenFile, TokenFileMetrics
from gpu_runtime.runtime_api.http.token_review import TokenReviewer
from gpu_runtime.runtime_api.settings import AuthenticationSettings, ServiceAccountScopeSettings
from tests.token_signer import FakeTokenIssuer, claims, sign

ALICE = "alice-8Zt3kQw1pXv7rN5m-c4"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    path.write_text(yaml.safe_dump({"tokens": [{"name": "alice", "token": ALICE, "scopes": ["runtime"]}]}))
    return path


@pytest.mark.parametrize("header", [None, "", "good", "Basic Z29vZA==", "Bearer", "Bearer  ", f"Bearer {'x' * 20_000}"])
def test_missing_or_malformed_bearer_token_is_rejected_with_the_remedy(header: str | None) -> None:
    with pytest.raises(Unauthenticated, match="send 'Authorization: Bearer TOKEN'"):
        parse_bearer_token(header)


def test_bearer_scheme_is_case_insensitive() -> None:
    assert parse_bearer_token("bEARER abc") == "abc"


class FakeClock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def reviewer(client: KubeClient, clock: FakeClock) -> TokenReviewer:
    verifier = ServiceAccountVerifier(client, ["gpu-runtime"], clock)
    return TokenReviewer(client, verifier, {ObjectKey("shop", "web"): frozenset({Scope.RUNTIME})})


def service_account_token(account: str = "shop/web", exp: float = 1000.0, **changes: Any) -> str:
    return sign(claims(account, **({"exp": exp, "nbf": 0.0} | changes)))


WEB = "system:serviceaccount:shop:web"


async def test_service_account_token_identifies_the_caller_and_its_scopes() -> None:
    cached_reviewer = reviewer(FakeTokenIssuer(), FakeClock())
    assert await cached_reviewer.find_caller(service_account_token()) == Caller(
        "serviceaccount:shop/web", frozenset({Scope.RUNTIME})
    )
    assert await cached_reviewer.find_caller(service_account_token("shop/other")) == Caller(
        "serviceaccount:shop/other", frozenset()
    )
    with pytest.raises(Unauthenticated, match="no key of the cluster has signed it"):
        await cached_reviewer.find_caller(sign(claims(exp=1000, nbf=0), "forged", {"kid": "cluster"}))


async def test_token_review_is_cached_for_60_s_and_a_rejection_for_5_s() -> None:
    client, clock = FakeTokenIssuer(), FakeClock()
    cached_reviewer = reviewer(client, clock)
    token = service_account_token()
    for clock.time, count in ((0, 1), (59, 1), (60, 2), (119, 2), (120, 3)):
        assert await cached_reviewer.find_caller(token)
        assert client.review_count == count
    client.review_count = 0
    client.deleted_accounts.add(WEB)
    for clock.time, count in ((200, 1), (204, 1), (205, 2)):
        with pytest.raises(Unauthenticated, match="its service account or its pod was deleted"):
            await cached_reviewer.find_caller(token)
        assert client.review_count == count


async def test_token_review_cache_never_outlives_the_token() -> None:
    client, clock = FakeTokenIssuer(), FakeClock()
    cached_reviewer = reviewer(client, clock)
    assert await cached_reviewer.find_caller(service_account_token(exp=30))
    clock.time = 30
    with pytest.raises(Unauthenticated, match="it has expired"):
        await cached_reviewer.find_caller(service_account_token(exp=30))
    assert client.review_count == 1


async def test_review_without_audiences_is_not_trusted() -> None:
    with pytest.raises(Unauthenticated):
        await reviewer(FakeTokenIssuer(reviewed_audiences=()), FakeClock()).find_caller(service_account_token())


async def test_unreachable_kubernetes_makes_token_review_unavailable() -> None:
    client, clock = FakeTokenIssuer(), FakeClock()
    cached_reviewer = reviewer(client, clock)
    await cached_reviewer.find_caller(service_account_token())
    clock.time = 60
    client.unreachable = True
    with pytest.raises(Unavailable, match="Kubernetes cannot review the bearer token now"):
        await cached_reviewer.find_caller(service_account_token())
    client.unreachable = False
    assert await cached_reviewer.find_caller(service_account_token()), "a failed review must not be cached"


async def test_token_review_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_review, "MAX_CACHED_REVIEWS", 20)
    cached_reviewer = reviewer(FakeTokenIssuer(), FakeClock())
    for number in range(30):
        await cached_reviewer.find_caller(service_account_token(jti=str(number)))
    assert len(cached_reviewer._reviews) == 20


async def test_token_file_is_checked_before_kubernetes(path: Path) -> None:
    client = FakeTokenIssuer(unreachable=True)
    authenticator = BearerAuthenticator(TokenFile(path, 300, TokenFileMetrics()), reviewer(client, FakeClock()))
    assert (await authenticator.authenticate(f"Bearer {ALICE}")).name == "token:alice"
    with pytest.raises(Unauthenticated, match="the bearer token is unknown or no longer valid"):
        await authenticator.authenticate("Bearer unknown-unknown-unknown")
    with pytest.raises(Unavailable):
        await authenticator.authenticate(f"Bearer {service_account_token()}")


async def test_disabled_authentication_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    authenticator, background, _ = build_authenticator(AuthenticationSettings(mode="off"), FakeTokenIssuer())
    assert await authenticator.authenticate(None) == ANONYMOUS
    assert background == ()
    [record] = caplog.records
    assert (record.levelno, "authentication is disabled" in record.message) == (logging.WARNING, True)


def test_authentication_without_any_caller_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="no caller is configured; set tokenFile or serviceAccounts"):
        build_authenticator(AuthenticationSettings(), FakeTokenIssuer())
    with pytest.raises(
        InvalidSettings, match=r"none\.yaml: No such file or directory; correct the file, or the Secret"
    ):
        build_authenticator(AuthenticationSettings(token_file=str(tmp_path / "none.yaml")), FakeTokenIssuer())


async def test_token_reviews_need_configured_service_accounts(path: Path) -> None:
    client = FakeTokenIssuer()
    token = f"Bearer {service_account_token(exp=4e9)}"
    only_file, *_ = build_authenticator(AuthenticationSettings(token_file=str(path)), client)
    with pytest.raises(Unauthenticated):
        await only_file.authenticate(token)
    assert client.review_count == 0
    trusted = (ServiceAccountScopeSettings(namespace="shop", name="web", scopes=("operator",)),)
    accounts, background, _ = build_authenticator(AuthenticationSettings(service_accounts=trusted), client)
    assert await accounts.authenticate(token) == Caller("serviceaccount:shop/web", frozenset({Scope.OPERATOR}))
    assert len(background) == 1, "the signing keys are read regularly"
