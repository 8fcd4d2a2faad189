"""Verifies tokens of service accounts offline, with the public keys of the cluster. Nothing here awaits.

A token is a JSON Web Token that the API server has signed. Each key has exactly one algorithm, so the header of a token
cannot choose another one. This module has no code for the algorithm `none` or for HMAC.

The checks are ordered by their cost: the length, the form, the claims, and the signature at the end. The cost of a
token is therefore limited, whatever it contains.
"""

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from msgspec import UNSET, Raw, Struct, UnsetType

from gpu_runtime.kube.errors import KubeDecodeError
from gpu_runtime.kube.meta import ObjectKey

MAX_TOKEN_LENGTH = 8 * 1024
"""The token of a pod has about 1,200 characters."""
NOT_BEFORE_LEEWAY_SECONDS = 60.0
"""Maximum difference by which the clock of this process may be behind the clock of the API server. Without it, a new
token would not be valid yet. The API server allows the same difference."""
MIN_RSA_KEY_BITS = 2048

_SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"


class InvalidServiceAccountToken(Exception):
    """The token is not a valid token of a service account. The message says why. It contains no part of the token."""


class TokenHeader(Struct, frozen=True):
    alg: str = ""
    kid: str = ""
    crit: Raw | UnsetType = UNSET


class TokenClaims(Struct, frozen=True):
    iss: str = ""
    sub: str = ""
    aud: str | tuple[str, ...] = ()
    exp: float = 0.0
    nbf: float = 0.0

    @property
    def audiences(self) -> frozenset[str]:
        return frozenset({self.aud} if isinstance(self.aud, str) else self.aud)

    @property
    def service_account(self) -> ObjectKey | None:
        return service_account_key(self.sub)


@dataclass(frozen=True)
class DecodedToken:
    """The parts of a token that is not verified yet."""

    header: TokenHeader
    claims: TokenClaims
    signed_part: bytes
    signature: bytes


class SignatureCheck(Protocol):
    def __call__(self, signature: bytes, signed_part: bytes) -> None:
        """Raise InvalidSignature if the signature does not belong to the signed part."""
        ...


@dataclass(frozen=True)
class SigningKey:
    algorithm: str
    check_signature: SignatureCheck


@dataclass(frozen=True)
class SigningKeys:
    """What the cluster publishes about its tokens: their issuer, and the public keys by key ID."""

    issuer: str
    keys: Mapping[str, SigningKey] = field(default_factory=dict)


class PublishedKey(Struct, frozen=True):
    """An entry of the JSON Web Key Set."""

    kty: str = ""
    kid: str = ""
    alg: str = ""
    use: str = "sig"
    n: str = ""
    e: str = ""
    crv: str = ""
    x: str = ""
    y: str = ""


class PublishedKeys(Struct, frozen=True):
    keys: tuple[PublishedKey, ...] = ()


class OpenIDConfiguration(Struct, frozen=True):
    issuer: str


def service_account_key(username: str) -> ObjectKey | None:
    namespace, _, name = username.removeprefix(_SERVICE_ACCOUNT_PREFIX).partition(":")
    return ObjectKey(namespace, name) if username.startswith(_SERVICE_ACCOUNT_PREFIX) and namespace and name else None


def decode_token(token: str) -> DecodedToken:
    """Split and decode a token without verifying it. Raises InvalidServiceAccountToken."""
    if len(token) > MAX_TOKEN_LENGTH:
        raise InvalidServiceAccountToken(f"it is longer than {MAX_TOKEN_LENGTH} characters")
    if token.count(".") != 2 or not token.isascii():
        raise InvalidServiceAccountToken("it is not a token of a service account")
    signed_part, _, signature = token.encode().rpartition(b".")
    header, _, claims = signed_part.partition(b".")
    try:
        return DecodedToken(
            _HEADER_DECODER.decode(_decode_base64url(header)),
            _CLAIMS_DECODER.decode(_decode_base64url(claims)),
            signed_part,
            _decode_base64url(signature),
        )
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidServiceAccountToken("it is not a token of a service account") from error


def check_claims(claims: TokenClaims, audiences: Collection[str], now: float) -> None:
    """Check the claims that need no key. `now` is the time of the wall clock. Raises InvalidServiceAccountToken."""
    if claims.service_account is None:
        raise InvalidServiceAccountToken("it is not a token of a service account")
    if not claims.audiences & set(audiences):
        raise InvalidServiceAccountToken(f"it has another audience; request a token for {' or '.join(audiences)}")
    if claims.exp <= now:
        raise InvalidServiceAccountToken("it has expired")
    if claims.nbf > now + NOT_BEFORE_LEEWAY_SECONDS:
        raise InvalidServiceAccountToken("it is not valid yet")


def check_signature(token: DecodedToken, published: SigningKeys) -> None:
    """Check the issuer and the signature. Raises InvalidServiceAccountToken."""
    if token.claims.iss != published.issuer:
        raise InvalidServiceAccountToken("another cluster has issued it")
    key = published.keys.get(token.header.kid)
    # RFC 7515: a token with an extension that the recipient does not understand is invalid.
    if key is None or token.header.alg != key.algorithm or token.header.crit is not UNSET:
        raise InvalidServiceAccountToken("no key of the cluster has signed it")
    try:
        key.check_signature(token.signature, token.signed_part)
    except InvalidSignature as error:
        raise InvalidServiceAccountToken("no key of the cluster has signed it") from error


def parse_signing_keys(openid_configuration: bytes, key_set: bytes) -> SigningKeys:
    """Parse the two documents that the API server publishes. Keys that cannot be used are left out.

    Raises KubeDecodeError.
    """
    try:
        issuer = msgspec.json.decode(openid_configuration, type=OpenIDConfiguration).issuer
        published = msgspec.json.decode(key_set, type=PublishedKeys).keys
    except (msgspec.DecodeError, RecursionError) as error:
        raise KubeDecodeError(f"the API server published malformed signing keys: {error}") from error
    keys = {each.kid: key for each in published if (key := _signing_key(each)) is not None}
    return SigningKeys(issuer, MappingProxyType(keys))


def _signing_key(published: PublishedKey) -> SigningKey | None:
    """Return the key, or None if it is no usable signing key."""
    build = _KEY_BUILDERS.get(published.kty)
    if build is None or not published.kid or published.use != "sig":
        return None
    try:
        key = build(published)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key if key is not None and published.alg in ("", key.algorithm) else None


def _rsa_key(published: PublishedKey) -> SigningKey | None:
    key = rsa.RSAPublicNumbers(_decode_integer(published.e), _decode_integer(published.n)).public_key()
    if key.key_size < MIN_RSA_KEY_BITS:
        return None
    return SigningKey("RS256", partial(_check_rsa_signature, key))


def _check_rsa_signature(key: rsa.RSAPublicKey, signature: bytes, signed_part: bytes) -> None:
    key.verify(signature, signed_part, padding.PKCS1v15(), hashes.SHA256())


def _elliptic_curve_key(published: PublishedKey) -> SigningKey | None:
    parameters = _CURVES.get(published.crv)
    if parameters is None:
        return None
    algorithm, curve, digest = parameters
    numbers = ec.EllipticCurvePublicNumbers(_decode_integer(published.x), _decode_integer(published.y), curve)
    return SigningKey(algorithm, partial(_check_ecdsa_signature, numbers.public_key(), digest))


def _check_ecdsa_signature(
    key: ec.EllipticCurvePublicKey, digest: hashes.HashAlgorithm, signature: bytes, signed_part: bytes
) -> None:
    size = (key.key_size + 7) // 8
    if len(signature) != 2 * size:
        raise InvalidSignature
    encoded = encode_dss_signature(int.from_bytes(signature[:size]), int.from_bytes(signature[size:]))
    key.verify(encoded, signed_part, ec.ECDSA(digest))


def _decode_integer(encoded: str) -> int:
    return int.from_bytes(_decode_base64url(encoded.encode()))


def _decode_base64url(encoded: bytes) -> bytes:
    """Decode base64url without padding. Raises ValueError also if another text has the same bytes.

    Otherwise one valid token would have many forms, and each of them would need a review.
    """
    decoded = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    if base64.urlsafe_b64encode(decoded).rstrip(b"=") != encoded:
        raise ValueError("not canonical base64url")
    return decoded


_HEADER_DECODER = msgspec.json.Decoder(TokenHeader)
_CLAIMS_DECODER = msgspec.json.Decoder(TokenClaims)
_KEY_BUILDERS = MappingProxyType({"RSA": _rsa_key, "EC": _elliptic_curve_key})
_CURVES = MappingProxyType(
    {
        "P-256": ("ES256", ec.SECP256R1(), hashes.SHA256()),
        "P-384": ("ES384", ec.SECP384R1(), hashes.SHA384()),
        "P-521": ("ES512", ec.SECP521R1(), hashes.SHA512()),
    }
)
