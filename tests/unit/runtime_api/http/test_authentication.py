"""Who calls is found out from a token, and nobody is let in because something went wrong."""

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
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.errors import Unreachable
from gpu_runtime.kube.meta import Key
from gpu_runtime.process.settings import BadSettings
from gpu_runtime.runtime_api.http.authentication import Bearer, authenticator, bearer_token
from gpu_runtime.runtime_api.http.caller import ANYBODY, Caller
from gpu_runtime.runtime_api.http.route import Scope
from gpu_runtime.runtime_api.http.token_file import TokenFile
from gpu_runtime.runtime_api.http.token_review import (
    TOKEN_REVIEWS,
    ReviewedUser,
    ReviewStatus,
    TokenReview,
    TokenReviewer,
    account_of,
    claims_of,
)
from gpu_runtime.runtime_api.settings import Authentication, ServiceAccountScopes

ALICE, BOB = "alice-alice-alice", "bob-bob-bob-bob-bob"


def tokens(**named: str) -> str:
    return yaml.safe_dump({"tokens": [{"name": n, "token": t, "scopes": ["runtime"]} for n, t in named.items()]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    path.write_text(tokens(alice=ALICE, bob=BOB))
    return path


def test_a_token_of_the_file_names_its_holder(path: Path) -> None:
    known = TokenFile(path)
    assert known.find(BOB) == Caller("token:bob", frozenset({Scope.RUNTIME}))
    assert known.find(BOB + "x") is None
    assert known.find("ä\udcff") is None


UNUSABLE = {
    "a short token": (tokens(alice="short-secret"), r"tokens\[0\] \(alice\): token has 12 characters; use at least 16"),
    "two holders of one name": (
        f"tokens: [{{name: a, token: {ALICE}, scopes: [runtime]}}, {{name: a, token: {BOB}, scopes: [runtime]}}]",
        r"tokens\[1\] \(a\): another token has this name already",
    ),
    "one token for two": (tokens(a=ALICE, b=ALICE), r"tokens\[1\] \(b\): token is the same as another one"),
    "a token with blanks": (tokens(a="with blanks inside it"), "no header can carry"),
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
    "no YAML": (f"tokens: [{{name: {ALICE}", "not YAML: line 1, column"),
}


@pytest.mark.parametrize(("text", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_file_that_cannot_be_used_is_an_error_that_quotes_no_token(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(BadSettings, match=message) as refusal:
        TokenFile(path)
    assert not any(secret in str(refusal.value) for secret in (ALICE, BOB, "short-secret", "with blanks"))


def test_a_changed_file_is_read_again(path: Path) -> None:
    known = TokenFile(path)
    path.write_text(tokens(carol=ALICE))
    known.look_again()
    assert known.find(ALICE) == Caller("token:carol", frozenset({Scope.RUNTIME}))
    assert known.find(BOB) is None


def test_the_swapped_link_of_a_mounted_secret_is_a_changed_file(tmp_path: Path) -> None:
    for version, holder in (("v1", "alice"), ("v2", "bob")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "tokens.yaml").write_text(tokens(**{holder: ALICE}))
    os.utime(tmp_path / "v2" / "tokens.yaml", (0, 0))  # as old as it likes
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "tokens.yaml").symlink_to("..data/tokens.yaml")
    known = TokenFile(tmp_path / "tokens.yaml")
    (tmp_path / "..new").symlink_to("v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    known.look_again()
    found = known.find(ALICE)
    assert found
    assert found.name == "token:bob"


@pytest.mark.parametrize("breaking", [lambda path: path.write_text("tokens: 3"), lambda path: path.unlink()])
def test_a_broken_new_file_keeps_the_old_tokens_and_is_told_once(
    path: Path, breaking: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    known = TokenFile(path)
    breaking(path)
    known.look_again()
    known.look_again()
    assert known.find(ALICE)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "the tokens from before stay good" in caplog.text


@pytest.mark.parametrize("header", [None, "", "good", "Basic Z29vZA==", "Bearer", "Bearer  ", f"Bearer {'x' * 20_000}"])
def test_what_is_no_bearer_token_is_told_how_to_send_one(header: str | None) -> None:
    with pytest.raises(Unauthenticated, match="send 'Authorization: Bearer TOKEN'"):
        bearer_token(header)


def test_the_scheme_has_any_case() -> None:
    assert bearer_token("bEARER abc") == "abc"


class Reviews(Client):
    """An API server that knows some tokens, for the logic around it."""

    def __init__(self, **known: str) -> None:
        self.known = known
        self.asked = 0
        self.away = False

    async def create(self, resource: Any, manifest: Any) -> Any:
        assert resource is TOKEN_REVIEWS
        self.asked += 1
        if self.away:
            raise Unreachable("nobody there", sent=False)
        user = self.known.get(manifest["spec"]["token"].split(".")[2])
        if user is None:
            return TokenReview()
        audiences = tuple(manifest["spec"]["audiences"])
        status = ReviewStatus(authenticated=True, user=ReviewedUser(username=user), audiences=audiences)
        return TokenReview(status=status)


def a_token(signature: str, exp: float = 1000.0, aud: Any = ("gpu-runtime",), sub: str = "") -> str:
    claims = {"exp": exp, "aud": aud, "sub": sub or "system:serviceaccount:shop:web"}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.{signature}"


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def reviewer(client: Client, clock: Clock) -> TokenReviewer:
    return TokenReviewer(client, ["gpu-runtime"], {Key("shop", "web"): frozenset({Scope.RUNTIME})}, clock)


WEB = "system:serviceaccount:shop:web"


async def test_a_service_account_is_named_and_has_its_scopes() -> None:
    found = reviewer(Reviews(web=WEB, other="system:serviceaccount:shop:other"), Clock())
    assert await found.find(a_token("web")) == Caller("serviceaccount:shop/web", frozenset({Scope.RUNTIME}))
    assert await found.find(a_token("other")) == Caller("serviceaccount:shop/other", frozenset())
    assert await found.find(a_token("forged")) is None


async def test_what_kubernetes_said_is_remembered_for_a_minute_and_a_refusal_for_seconds() -> None:
    client, clock = Reviews(web=WEB), Clock()
    found = reviewer(client, clock)
    good, bad = a_token("web"), a_token("forged")
    for clock.time, asked in ((0, 1), (59, 1), (60, 2), (119, 2), (120, 3)):
        assert await found.find(good)
        assert client.asked == asked
    client.asked = 0
    for clock.time, asked in ((200, 1), (204, 1), (205, 2)):
        assert await found.find(bad) is None
        assert client.asked == asked


async def test_nothing_is_remembered_beyond_the_end_of_the_token() -> None:
    client, clock = Reviews(web=WEB), Clock()
    found = reviewer(client, clock)
    assert await found.find(a_token("web", exp=30))
    clock.time = 30
    assert await found.find(a_token("web", exp=30)) is None
    assert client.asked == 1


NOT_WORTH_ASKING = {
    "no web token": "just-a-word",
    "garbage inside": "a.!!!.c",
    "a list inside": f"a.{base64.urlsafe_b64encode(b'[]').decode()}.c",
    "an end in the past": a_token("web", exp=-1),
    "another audience": a_token("web", aud=["elsewhere"]),
    "another audience as text": a_token("web", aud="elsewhere"),
    "a person": a_token("web", sub="alice@example.com"),
}


@pytest.mark.parametrize("token", NOT_WORTH_ASKING.values(), ids=NOT_WORTH_ASKING)
async def test_kubernetes_is_not_asked_about_what_cannot_be_good(token: str) -> None:
    client = Reviews(web=WEB)
    assert await reviewer(client, Clock()).find(token) is None
    assert client.asked == 0


async def test_a_server_that_does_not_look_at_audiences_is_not_believed() -> None:
    class Careless(Reviews):
        async def create(self, resource: Any, manifest: Any) -> Any:
            return await super().create(resource, {"spec": manifest["spec"] | {"audiences": []}})

    assert await reviewer(Careless(web=WEB), Clock()).find(a_token("web")) is None


async def test_while_kubernetes_is_away_a_token_is_neither_good_nor_bad() -> None:
    client = Reviews(web=WEB)
    client.away = True
    found = reviewer(client, Clock())
    with pytest.raises(Unavailable, match="Kubernetes cannot say now whose token this is"):
        await found.find(a_token("web"))
    client.away = False
    assert await found.find(a_token("web")), "a failure must not be remembered"


async def test_memory_is_bounded() -> None:
    found = reviewer(Reviews(), Clock())
    for number in range(5000):
        await found.find(a_token(f"forged-{number}"))
    assert len(found._remembered) == 4096


async def test_the_file_is_asked_before_the_cluster(path: Path) -> None:
    client = Reviews(web=WEB)
    client.away = True
    both = Bearer(TokenFile(path), reviewer(client, Clock()))
    assert (await both.caller(f"Bearer {ALICE}")).name == "token:alice"
    with pytest.raises(Unauthenticated, match="not known here"):
        await both.caller("Bearer unknown-unknown-unknown")
    with pytest.raises(Unavailable):
        await both.caller(f"Bearer {a_token('web')}")


@pytest.mark.parametrize(
    ("username", "account"),
    [(WEB, Key("shop", "web")), ("system:node:a", None), ("system:serviceaccount:shop", None), ("", None)],
)
def test_an_account_has_a_namespace_and_a_name(username: str, account: Key | None) -> None:
    assert account_of(username) == account


def test_claims_are_read_without_padding() -> None:
    claims = claims_of(a_token("x", exp=5))
    assert claims
    assert claims.exp == 5


async def test_where_authentication_is_off_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    who, background = authenticator(Authentication(mode="off"), Reviews())
    assert await who.caller(None) == ANYBODY
    assert background == ()
    [record] = caplog.records
    assert (record.levelno, "authentication is off" in record.message) == (logging.WARNING, True)


def test_settings_that_let_nobody_in_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="nobody could call; give a tokenFile or serviceAccounts"):
        authenticator(Authentication(), Reviews())
    with pytest.raises(BadSettings, match=r"none\.yaml: No such file or directory; correct the file, or the Secret"):
        authenticator(Authentication(token_file=str(tmp_path / "none.yaml")), Reviews())


async def test_the_cluster_is_asked_only_where_accounts_are_trusted(path: Path) -> None:
    client = Reviews(web=WEB)
    token = f"Bearer {a_token('web', exp=4e9)}"
    only_file, _ = authenticator(Authentication(token_file=str(path)), client)
    with pytest.raises(Unauthenticated):
        await only_file.caller(token)
    assert client.asked == 0
    trusted = (ServiceAccountScopes(namespace="shop", name="web", scopes=("operator",)),)
    accounts, background = authenticator(Authentication(service_accounts=trusted), client)
    assert await accounts.caller(token) == Caller("serviceaccount:shop/web", frozenset({Scope.OPERATOR}))
    assert background == ()
