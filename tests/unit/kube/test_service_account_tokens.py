"""A token of a service account is valid if a published key of the cluster has signed it and its claims fit."""

import json
from typing import Any

import pytest

from gpu_runtime.kube.errors import KubeDecodeError, KubeError
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.service_account_tokens import (
    InvalidServiceAccountToken,
    TokenClaims,
    check_claims,
    parse_signing_keys,
    service_account_key,
)
from gpu_runtime.kube.service_account_verifier import (
    KEY_SET_PATH,
    MIN_KEY_READ_INTERVAL_SECONDS,
    OPENID_CONFIGURATION_PATH,
    ServiceAccountVerifier,
)
from tests.token_signer import (
    FakeTokenIssuer,
    base64url,
    claims,
    published_elliptic_curve_key,
    published_rsa_key,
    sign,
    sign_with_elliptic_curve,
)

WEB = "system:serviceaccount:shop:web"


class FakeMonotonic:
    time = 100.0

    def __call__(self) -> float:
        return self.time


def verifier(client: FakeTokenIssuer, clock: FakeMonotonic | None = None) -> ServiceAccountVerifier:
    return ServiceAccountVerifier(client, ["gpu-runtime"], monotonic=clock or FakeMonotonic())


async def test_token_with_an_rsa_signature_is_valid() -> None:
    verified = await verifier(FakeTokenIssuer()).verify(sign(claims()))
    assert (verified.sub, verified.service_account) == (WEB, ObjectKey("shop", "web"))


async def test_token_with_an_elliptic_curve_signature_is_valid() -> None:
    client = FakeTokenIssuer([published_elliptic_curve_key("curve")])
    token = sign_with_elliptic_curve(claims(), "curve")
    assert (await verifier(client).verify(token)).sub == WEB
    with pytest.raises(InvalidServiceAccountToken, match="no key of the cluster has signed it"):
        await verifier(client).verify(token[:-4] + ("AAAA" if not token.endswith("AAAA") else "BBBB"))
    with pytest.raises(InvalidServiceAccountToken, match="no key of the cluster has signed it"):
        await verifier(client).verify(f"{token.rpartition('.')[0]}.{base64url(bytes(63))}")


async def test_new_key_is_read_when_a_token_names_it() -> None:
    client, clock = FakeTokenIssuer(), FakeMonotonic()
    keys = verifier(client, clock)
    await keys.verify(sign(claims()))
    client.keys = [published_rsa_key("cluster"), published_rsa_key("rotated")]
    clock.time += MIN_KEY_READ_INTERVAL_SECONDS
    assert (await keys.verify(sign(claims(), "rotated"))).sub == WEB
    assert client.read_paths == [OPENID_CONFIGURATION_PATH, KEY_SET_PATH] * 2


async def test_keys_are_read_at_most_every_10_s() -> None:
    client, clock = FakeTokenIssuer(), FakeMonotonic()
    keys = verifier(client, clock)
    for clock.time, reads in ((0.0, 1), (9.0, 1), (10.0, 2), (11.0, 2)):
        with pytest.raises(InvalidServiceAccountToken):
            await keys.verify(sign(claims(), "unknown"))
        assert len(client.read_paths) == 2 * reads


async def test_known_keys_verify_tokens_while_the_api_server_is_unreachable() -> None:
    client, clock = FakeTokenIssuer(), FakeMonotonic()
    keys = verifier(client, clock)
    await keys.verify(sign(claims()))
    client.unreachable = True
    clock.time += 1000
    assert (await keys.verify(sign(claims()))).sub == WEB
    with pytest.raises(InvalidServiceAccountToken):
        await keys.verify(sign(claims(), "unknown"))


async def test_token_cannot_be_verified_before_the_keys_were_read() -> None:
    client, clock = FakeTokenIssuer(unreachable=True), FakeMonotonic()
    keys = verifier(client, clock)
    for _ in range(2):
        with pytest.raises(KubeError):
            await keys.verify(sign(claims()))
    assert client.read_paths == [OPENID_CONFIGURATION_PATH]
    client.unreachable = False
    clock.time += MIN_KEY_READ_INTERVAL_SECONDS
    assert (await keys.verify(sign(claims()))).sub == WEB


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sub": "system:node:a"}, "it is not a token of a service account"),
        ({"aud": "elsewhere"}, "it has another audience; request a token for gpu-runtime"),
        ({"exp": 100.0}, "it has expired"),
        ({"nbf": 161.0}, "it is not valid yet"),
    ],
)
def test_claims_that_do_not_fit_are_rejected_with_the_reason(changes: dict[str, Any], message: str) -> None:
    fitting: dict[str, Any] = {"sub": WEB, "aud": "gpu-runtime", "exp": 101.0, "nbf": 160.0}
    check_claims(TokenClaims(**fitting), ["gpu-runtime"], now=100.0)
    with pytest.raises(InvalidServiceAccountToken, match=message):
        check_claims(TokenClaims(**(fitting | changes)), ["gpu-runtime"], now=100.0)


UNUSABLE_KEYS = {
    "a secret": {"kty": "oct", "k": "c2VjcmV0"},
    "an encryption key": published_rsa_key("cluster") | {"use": "enc"},
    "another algorithm": published_rsa_key("cluster") | {"alg": "HS256"},
    "no key ID": published_rsa_key("cluster") | {"kid": ""},
    "a short RSA key": published_rsa_key("cluster") | {"n": base64url(b"\xff" * 64)},
    "no modulus": published_rsa_key("cluster") | {"n": ""},
    "no base64": published_rsa_key("cluster") | {"n": "!"},
    "an unknown curve": published_elliptic_curve_key("curve") | {"crv": "P-255"},
    "a point that is not on the curve": published_elliptic_curve_key("curve") | {"x": base64url(b"1" * 32)},
}


@pytest.mark.parametrize("key", UNUSABLE_KEYS.values(), ids=UNUSABLE_KEYS)
def test_unusable_key_is_left_out(key: dict[str, str]) -> None:
    key_set = json.dumps({"keys": [key, published_rsa_key("good")]}).encode()
    assert set(parse_signing_keys(b'{"issuer": "https://a"}', key_set).keys) == {"good"}


@pytest.mark.parametrize("document", [b"", b"[]", b'{"issuer": 1}', b"{}", b"[" * 100_000])
def test_malformed_document_is_an_error(document: bytes) -> None:
    with pytest.raises(KubeDecodeError, match="published malformed signing keys"):
        parse_signing_keys(document, b'{"keys": []}')


@pytest.mark.parametrize(
    ("username", "account"),
    [(WEB, ObjectKey("shop", "web")), ("system:node:a", None), ("system:serviceaccount:shop", None), ("", None)],
)
def test_service_account_username_is_parsed(username: str, account: ObjectKey | None) -> None:
    assert service_account_key(username) == account
