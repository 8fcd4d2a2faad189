"""Signs tokens of service accounts like an API server, and serves the documents with the public keys."""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeUnreachable
from gpu_runtime.runtime_api.http.token_review import TOKEN_REVIEWS, ReviewedUser, ReviewStatus, TokenReview

ISSUER = "https://kubernetes.default.svc.cluster.local"


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def json_part(value: object) -> str:
    return base64url(json.dumps(value).encode())


@cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def elliptic_curve_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def claims(account: str = "shop/web", **changes: Any) -> dict[str, Any]:
    namespace, _, name = account.partition("/")
    now = time.time()
    default = {"iss": ISSUER, "sub": f"system:serviceaccount:{namespace}:{name}", "aud": ["gpu-runtime"]}
    return default | {"exp": now + 3600, "nbf": now, "iat": now} | changes


def sign(payload: Mapping[str, Any], key: str = "cluster", header: Mapping[str, Any] | None = None) -> str:
    """Return a token with the signature of an RSA key."""
    signed_part = f"{json_part({'alg': 'RS256', 'kid': key, **(header or {})})}.{json_part(payload)}"
    signature = rsa_key(key).sign(signed_part.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed_part}.{base64url(signature)}"


def sign_with_elliptic_curve(payload: Mapping[str, Any], key: str) -> str:
    signed_part = f"{json_part({'alg': 'ES256', 'kid': key})}.{json_part(payload)}"
    r, s = decode_dss_signature(elliptic_curve_key(key).sign(signed_part.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed_part}.{base64url(r.to_bytes(32) + s.to_bytes(32))}"


def published_rsa_key(key: str) -> dict[str, str]:
    numbers = rsa_key(key).public_key().public_numbers()
    modulus = numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8)
    return {
        "use": "sig",
        "kty": "RSA",
        "kid": key,
        "alg": "RS256",
        "n": base64url(modulus),
        "e": base64url(numbers.e.to_bytes(3)),
    }


def published_elliptic_curve_key(key: str) -> dict[str, str]:
    numbers = elliptic_curve_key(key).public_key().public_numbers()
    coordinates = {"x": base64url(numbers.x.to_bytes(32)), "y": base64url(numbers.y.to_bytes(32))}
    return {"use": "sig", "kty": "EC", "kid": key, "alg": "ES256", "crv": "P-256", **coordinates}


@dataclass
class FakeTokenIssuer(KubeClient):
    """An API server that publishes its keys and reviews tokens. It accepts every token except those of deleted
    accounts."""

    keys: list[dict[str, str]] = field(default_factory=lambda: [published_rsa_key("cluster")])
    deleted_accounts: set[str] = field(default_factory=set)
    reviewed_audiences: tuple[str, ...] | None = None
    """The audiences in the status of a review. None: those of the request."""
    unreachable: bool = False
    review_count: int = 0
    read_paths: list[str] = field(default_factory=list)

    async def read_path(self, path: str) -> bytes:
        self.read_paths.append(path)
        self._connect()
        documents = {"/.well-known/openid-configuration": {"issuer": ISSUER}, "/openid/v1/jwks": {"keys": self.keys}}
        return json.dumps(documents[path]).encode()

    async def create(self, resource: Any, manifest: Any) -> Any:
        assert resource is TOKEN_REVIEWS
        self.review_count += 1
        self._connect()
        payload = manifest["spec"]["token"].split(".")[1]
        user = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"]
        if user in self.deleted_accounts:
            return TokenReview()
        audiences = self.reviewed_audiences
        audiences = tuple(manifest["spec"]["audiences"]) if audiences is None else audiences
        status = ReviewStatus(authenticated=True, user=ReviewedUser(username=user), audiences=audiences)
        return TokenReview(status=status)

    def _connect(self) -> None:
        if self.unreachable:
            raise KubeUnreachable("connection refused", sent=False)
