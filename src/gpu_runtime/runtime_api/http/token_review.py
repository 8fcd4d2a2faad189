"""Authenticates service accounts of the cluster with the TokenReview API of Kubernetes.

The result of a review is cached for a limited time, but never after the token has expired. The cache has a maximum
size. After a service account is deleted, its token therefore stays valid for at most the cache TTL.
"""

import asyncio
import base64
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.meta import ApiResource, KubeObject, KubeStruct, ObjectKey
from gpu_runtime.runtime_api.http.route import Caller, Scope

REVIEW_CACHE_TTL_SECONDS = 60.0
REJECTED_REVIEW_CACHE_TTL_SECONDS = 5.0
MAX_CACHED_REVIEWS = 4096
MAX_CONCURRENT_TOKEN_REVIEWS = 8
"""Without this limit, unauthenticated callers could use all connections to Kubernetes."""

_SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"


class ReviewedUser(KubeStruct, frozen=True, kw_only=True):
    username: str = ""


class ReviewStatus(KubeStruct, frozen=True, kw_only=True):
    authenticated: bool = False
    user: ReviewedUser = ReviewedUser()
    audiences: tuple[str, ...] = ()


class TokenReview(KubeObject, frozen=True, kw_only=True):
    status: ReviewStatus = ReviewStatus()


TOKEN_REVIEWS = ApiResource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", TokenReview, namespaced=False)


class TokenClaims(msgspec.Struct, frozen=True):
    """The unverified claims of a token. They are used only to skip reviews that would fail, and to limit the cache time
    of a review."""

    exp: float = 0.0
    aud: str | tuple[str, ...] = ()
    sub: str = ""


@dataclass(frozen=True)
class _CachedReview:
    caller: Caller | None
    expires_at: float


@dataclass(frozen=True)
class TokenReviewer:
    """Reviews tokens and caches the results. `now` is the wall clock, because a token expires at a wall-clock time."""

    client: KubeClient
    audiences: Sequence[str]
    scopes: Mapping[ObjectKey, frozenset[Scope]]
    now: Callable[[], float] = time.time
    _reviews: OrderedDict[bytes, _CachedReview] = field(default_factory=OrderedDict)
    _semaphore: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_TOKEN_REVIEWS))

    async def find_caller(self, token: str) -> Caller | None:
        """Return the service account that has this token, or None.

        Raises Unavailable if Kubernetes cannot review the token.
        """
        claims = decode_claims(token)
        if claims is None or not self._may_be_valid(claims):
            return None
        digest = hashlib.sha256(token.encode()).digest()
        review = self._cached_review(digest)
        if review is None:
            async with self._semaphore:
                # Another request may have reviewed the same token while this one waited.
                review = self._cached_review(digest) or self._cache_review(digest, claims, await self._review(token))
        return review.caller

    def _may_be_valid(self, claims: TokenClaims) -> bool:
        audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
        return (
            claims.exp > self.now()
            and claims.sub.startswith(_SERVICE_ACCOUNT_PREFIX)
            and bool({*audiences} & {*self.audiences})
        )

    def _cached_review(self, digest: bytes) -> _CachedReview | None:
        review = self._reviews.get(digest)
        return review if review is not None and review.expires_at > self.now() else None

    def _cache_review(self, digest: bytes, claims: TokenClaims, caller: Caller | None) -> _CachedReview:
        seconds = REVIEW_CACHE_TTL_SECONDS if caller else REJECTED_REVIEW_CACHE_TTL_SECONDS
        review = _CachedReview(caller, min(claims.exp, self.now() + seconds))
        self._reviews[digest] = review
        self._reviews.move_to_end(digest)
        if len(self._reviews) > MAX_CACHED_REVIEWS:
            self._reviews.popitem(last=False)
        return review

    async def _review(self, token: str) -> Caller | None:
        manifest: dict[str, Any] = {"spec": {"token": token, "audiences": list(self.audiences)}}
        try:
            review = await self.client.create(TOKEN_REVIEWS, manifest)
        except KubeError as error:
            raise Unavailable(f"Kubernetes cannot review the bearer token now: {error}") from error
        return self._caller(review.status)

    def _caller(self, status: ReviewStatus) -> Caller | None:
        account = service_account_key(status.user.username)
        # If the status has no audiences, the API server did not check them, and the token is rejected.
        if not status.authenticated or account is None or not {*status.audiences} & {*self.audiences}:
            return None
        return Caller(f"serviceaccount:{account}", self.scopes.get(account, frozenset()))


def service_account_key(username: str) -> ObjectKey | None:
    namespace, _, name = username.removeprefix(_SERVICE_ACCOUNT_PREFIX).partition(":")
    return ObjectKey(namespace, name) if username.startswith(_SERVICE_ACCOUNT_PREFIX) and namespace and name else None


def decode_claims(token: str) -> TokenClaims | None:
    """Return the claims of a JSON Web Token, or None if the token is not a JSON Web Token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(payload, type=TokenClaims)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None
