"""Attacks with tokens that the cluster has not issued for the API. None of them may cost a request to Kubernetes."""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gpu_runtime.contract.errors import Unauthenticated
from gpu_runtime.runtime_api.http.authentication import Authenticator, build_authenticator
from gpu_runtime.runtime_api.settings import AuthenticationSettings, ServiceAccountScopeSettings
from tests.token_signer import FakeTokenIssuer, base64url, claims, json_part, rsa_key, sign

WEB = ServiceAccountScopeSettings(namespace="shop", name="web", scopes=("runtime",))
MAX_SECONDS_PER_FORGED_TOKEN = 0.005


def authenticator_for(cluster: FakeTokenIssuer) -> Authenticator:
    authenticator, *_ = build_authenticator(AuthenticationSettings(service_accounts=(WEB,)), cluster)
    return authenticator


async def is_rejected(authenticator: Authenticator, token: str) -> bool:
    try:
        await authenticator.authenticate(f"Bearer {token}")
    except Unauthenticated:
        return True
    return False


def foreign_token(number: int) -> str:
    """A well-formed token for the configured service account, signed by another cluster."""
    return sign(claims(jti=str(number)), "attacker", {"kid": "cluster"})


async def test_flood_of_foreign_tokens_causes_no_token_review() -> None:
    cluster = FakeTokenIssuer()
    authenticator = authenticator_for(cluster)
    rejected = [await is_rejected(authenticator, foreign_token(number)) for number in range(100)]
    assert cluster.review_count == 0
    assert all(rejected)


async def test_flood_of_unknown_key_ids_causes_one_read_of_the_keys() -> None:
    cluster = FakeTokenIssuer()
    authenticator = authenticator_for(cluster)
    tokens = [sign(claims(), "attacker", {"kid": f"key-{number}"}) for number in range(100)]
    rejected = [await is_rejected(authenticator, token) for token in tokens]
    assert (cluster.review_count, len(cluster.read_paths)) == (0, 2)
    assert all(rejected)


async def test_many_forms_of_one_valid_token_cause_one_token_review() -> None:
    cluster = FakeTokenIssuer()
    authenticator = authenticator_for(cluster)
    valid = sign(claims())
    await authenticator.authenticate(f"Bearer {valid}")
    # Each of these signatures decodes to the same bytes if the decoder ignores unknown characters and unused bits.
    forms = [f"{valid[:-position]}~{valid[-position:]}" for position in range(1, 50)]
    forms += [f"{valid}=", f"{valid}==", f"{valid}A"]
    for form in forms:
        await is_rejected(authenticator, form)
    assert cluster.review_count == 1


def unsigned_token() -> str:
    return f"{json_part({'alg': 'none', 'kid': 'cluster'})}.{json_part(claims())}."


def hmac_token(key: bytes) -> str:
    signed_part = f"{json_part({'alg': 'HS256', 'kid': 'cluster'})}.{json_part(claims())}"
    return f"{signed_part}.{base64url(hmac.digest(key, signed_part.encode(), hashlib.sha256))}"


def token_signed_with_the_public_key_as_hmac_secret() -> str:
    public_key = rsa_key("cluster").public_key()
    return hmac_token(public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


FORGERIES: dict[str, Callable[[], str]] = {
    "alg none without a signature": unsigned_token,
    "alg none with the signature of a valid token": lambda: unsigned_token() + sign(claims()).rpartition(".")[2],
    "HS256 with the public key as the secret": token_signed_with_the_public_key_as_hmac_secret,
    "HS256 with an empty secret": lambda: hmac_token(b""),
    "RS512 with a signature of RS256": lambda: sign(claims(), header={"alg": "RS512"}),
    "an unknown critical extension": lambda: sign(claims(), header={"crit": ["b64"], "b64": False}),
    "a key in the header": lambda: sign(claims(), "attacker", {"jwk": {"kty": "RSA"}, "kid": "cluster"}),
    "claims replaced after the signature": lambda: ".".join(
        (sign(claims()).split(".")[0], json_part(claims(jti="other")), sign(claims()).split(".")[2])
    ),
    "another audience": lambda: sign(claims(aud=["https://kubernetes.default.svc"])),
    "no audience": lambda: sign(claims(aud=[])),
    "another issuer": lambda: sign(claims(iss="https://other.example.com")),
    "an expired token": lambda: sign(claims(exp=time.time() - 1)),
    "a token without expiry": lambda: sign({key: value for key, value in claims().items() if key != "exp"}),
    "a token for the future": lambda: sign(claims(nbf=time.time() + 3600)),
    "a user who is no service account": lambda: sign(claims(sub="system:admin")),
    "a service account without a name": lambda: sign(claims(sub="system:serviceaccount:shop:")),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
async def test_forged_token_is_rejected_without_a_token_review(forge: Callable[[], str]) -> None:
    cluster = FakeTokenIssuer()
    rejected = await is_rejected(authenticator_for(cluster), forge())
    assert (cluster.review_count, rejected) == (0, True)


async def test_valid_token_of_an_unconfigured_account_has_no_scope_and_causes_no_token_review() -> None:
    cluster = FakeTokenIssuer()
    caller = await authenticator_for(cluster).authenticate(f"Bearer {sign(claims('shop/other'))}")
    assert (caller.name, caller.scopes) == ("serviceaccount:shop/other", frozenset())
    assert cluster.review_count == 0


MALFORMED = {
    "deeply nested claims": f"e30.{base64url(b'[' * 6000)}.AAAA",
    "a deeply nested header": f"{base64url(b'[' * 6000)}.e30.AAAA",
    "only dots": "." * 8000,
    "a huge key ID": f"{json_part({'alg': 'RS256', 'kid': 'k' * 5000})}.{json_part(claims())}.AAAA",
    "many audiences": f"e30.{json_part(claims(aud=['a'] * 1000))}.AAAA",
    "no base64": f"e30.{'!' * 8000}.AAAA",
    "no UTF-8": f"e30.{base64.urlsafe_b64encode(bytes(range(256)) * 20).decode().rstrip('=')}.AAAA",
    "an oversize token": f"e30.{json_part(claims(padding='x' * 10_000))}.AAAA",
    "characters outside ASCII": "ä.ö.ü",
}


@pytest.mark.parametrize("token", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_token_is_rejected_at_a_small_cost(token: str) -> None:
    cluster = FakeTokenIssuer()
    authenticator = authenticator_for(cluster)
    started = time.thread_time()
    rejected = [await is_rejected(authenticator, token) for _ in range(20)]
    assert (time.thread_time() - started) / 20 < MAX_SECONDS_PER_FORGED_TOKEN
    assert (cluster.review_count, all(rejected)) == (0, True)
