"""Authenticates service accounts of the cluster: verifies their tokens offline, then with the TokenReview API.

The offline verification rejects tokens that the cluster has not issued for this API, so that unauthenticated callers
cannot cause requests to Kubernetes. The review detects that the service account or the pod of the token was deleted.
Only tokens of configured service accounts are reviewed.

The result of a review is cached for a limited time, but never after the token has expired. The cache has a maximum
size. After a service account is deleted, its token therefore stays valid for at most the cache TTL.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_runtime.contract.errors import Unauthenticated, Unavailable
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.meta import ApiResource, KubeObject, KubeStruct, ObjectKey
from gpu_runtime.kube.service_account_tokens import InvalidServiceAccountToken, TokenClaims, service_account_key
from gpu_runtime.kube.service_account_verifier import ServiceAccountVerifier
from gpu_runtime.runtime_api.http.route import Caller, Scope

REVIEW_CACHE_TTL_SECONDS = 60.0
REJECTED_REVIEW_CACHE_TTL_SECONDS = 5.0
MAX_CACHED_REVIEWS = 4096
MAX_CONCURRENT_TOKEN_REVIEWS = 8
"""Without this limit, callers with many tokens could use all connections to Kubernetes."""


class ReviewedUser(KubeStruct, frozen=True, kw_only=True):
    username: str = ""


class ReviewStatus(KubeStruct, frozen=True, kw_only=True):
    authenticated: bool = False
    user: ReviewedUser = ReviewedUser()
    audiences: tuple[str, ...] = ()


class TokenReview(KubeObject, frozen=True, kw_only=True):
    status: ReviewStatus = ReviewStatus()


TOKEN_REVIEWS = ApiResource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", TokenReview, namespaced=False)


@dataclass(frozen=True)
class _CachedReview:
    caller: Caller | None
    expires_at: float


@dataclass(frozen=True)
class TokenReviewer:
    """Verifies and reviews tokens, and caches the results of the reviews."""

    client: KubeClient
    verifier: ServiceAccountVerifier
    scopes: Mapping[ObjectKey, frozenset[Scope]]
    _reviews: OrderedDict[bytes, _CachedReview] = field(default_factory=OrderedDict)
    _semaphore: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_TOKEN_REVIEWS))

    async def find_caller(self, token: str) -> Caller:
        """Return the service account that has this token.

        Raises Unauthenticated if the token is not valid, and Unavailable if Kubernetes is needed and cannot be reached.
        """
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        review = self._cached_review(digest)
        if review is None:
            claims = await self._verify(token)
            account = claims.service_account
            if account not in self.scopes:
                return Caller(f"serviceaccount:{account}")
            async with self._semaphore:
                # Another request may have reviewed the same token while this one waited.
                review = self._cached_review(digest) or self._cache_review(digest, claims, await self._review(token))
        if review.caller is None:
            raise Unauthenticated("Kubernetes rejects the bearer token: its service account or its pod was deleted")
        return review.caller

    async def _verify(self, token: str) -> TokenClaims:
        try:
            return await self.verifier.verify(token)
        except InvalidServiceAccountToken as error:
            raise Unauthenticated(f"the bearer token is unknown or no longer valid: {error}") from error
        except KubeError as error:
            raise Unavailable(f"the bearer token cannot be verified now: {error}") from error

    def _cached_review(self, digest: bytes) -> _CachedReview | None:
        review = self._reviews.get(digest)
        return review if review is not None and review.expires_at > self.verifier.now() else None

    def _cache_review(self, digest: bytes, claims: TokenClaims, caller: Caller | None) -> _CachedReview:
        seconds = REVIEW_CACHE_TTL_SECONDS if caller else REJECTED_REVIEW_CACHE_TTL_SECONDS
        review = _CachedReview(caller, min(claims.exp, self.verifier.now() + seconds))
        self._reviews[digest] = review
        self._reviews.move_to_end(digest)
        if len(self._reviews) > MAX_CACHED_REVIEWS:
            self._reviews.popitem(last=False)
        return review

    async def _review(self, token: str) -> Caller | None:
        manifest: dict[str, Any] = {"spec": {"token": token, "audiences": list(self.verifier.audiences)}}
        try:
            review = await self.client.create(TOKEN_REVIEWS, manifest)
        except KubeError as error:
            raise Unavailable(f"Kubernetes cannot review the bearer token now: {error}") from error
        return self._caller(review.status)

    def _caller(self, status: ReviewStatus) -> Caller | None:
        account = service_account_key(status.user.username)
        # If the status has no audiences, the API server did not check them, and the token is rejected.
        if not status.authenticated or account is None or not {*status.audiences} & {*self.verifier.audiences}:
            return None
        return Caller(f"serviceaccount:{account}", self.scopes.get(account, frozenset()))
