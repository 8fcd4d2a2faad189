"""Callers that are service accounts of the cluster: Kubernetes itself says whose token it is.

What it said is remembered for a while, never beyond the token's own end, and in bounded memory. A token whose account
was deleted is therefore good for at most that while longer.
"""

import asyncio
import base64
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.meta import Key, Object, Resource, Wire
from gpu_runtime.runtime_api.http.caller import Caller
from gpu_runtime.runtime_api.http.route import Scope

REMEMBER_SECONDS = 60.0
REMEMBER_REFUSAL_SECONDS = 5.0
REMEMBER_MOST = 4096
AT_ONCE = 8
"""How many tokens are reviewed at the same time: strangers must not use up the connections to Kubernetes."""

_USER = "system:serviceaccount:"


class ReviewedUser(Wire, frozen=True, kw_only=True):
    username: str = ""


class ReviewStatus(Wire, frozen=True, kw_only=True):
    authenticated: bool = False
    user: ReviewedUser = ReviewedUser()
    audiences: tuple[str, ...] = ()


class TokenReview(Object, frozen=True, kw_only=True):
    status: ReviewStatus = ReviewStatus()


TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", TokenReview, namespaced=False)


class Claims(msgspec.Struct, frozen=True):
    """What a token says of itself. Nothing of it is believed; it only saves questions."""

    exp: float = 0.0
    aud: str | tuple[str, ...] = ()
    sub: str = ""


@dataclass(frozen=True)
class _Remembered:
    caller: Caller | None
    until: float


class TokenReviewer:
    """Time is the wall clock, because tokens end by it."""

    def __init__(
        self,
        client: Client,
        audiences: Sequence[str],
        scopes: Mapping[Key, frozenset[Scope]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._audiences = tuple(audiences)
        self._scopes = scopes
        self._now = now
        self._remembered: OrderedDict[bytes, _Remembered] = OrderedDict()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def find(self, token: str) -> Caller | None:
        """Whose token it is; Unavailable where Kubernetes cannot say."""
        claims = claims_of(token)
        if claims is None or not self._worth_asking(claims):
            return None
        digest = hashlib.sha256(token.encode()).digest()
        remembered = self._recall(digest)
        if remembered is None:
            async with self._turns:
                # Whoever waited for the same token finds the answer here.
                remembered = self._recall(digest) or self._remember(digest, claims, await self._ask(token))
        return remembered.caller

    def _worth_asking(self, claims: Claims) -> bool:
        meant_for = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
        return claims.exp > self._now() and claims.sub.startswith(_USER) and bool({*meant_for} & {*self._audiences})

    def _recall(self, digest: bytes) -> _Remembered | None:
        found = self._remembered.get(digest)
        return found if found is not None and found.until > self._now() else None

    def _remember(self, digest: bytes, claims: Claims, caller: Caller | None) -> _Remembered:
        seconds = REMEMBER_SECONDS if caller else REMEMBER_REFUSAL_SECONDS
        remembered = _Remembered(caller, min(claims.exp, self._now() + seconds))
        self._remembered[digest] = remembered
        self._remembered.move_to_end(digest)
        if len(self._remembered) > REMEMBER_MOST:
            self._remembered.popitem(last=False)
        return remembered

    async def _ask(self, token: str) -> Caller | None:
        manifest: dict[str, Any] = {"spec": {"token": token, "audiences": list(self._audiences)}}
        try:
            review = await self._client.create(TOKEN_REVIEWS, manifest)
        except KubeError as error:
            raise Unavailable(f"Kubernetes cannot say now whose token this is: {error}") from error
        return self._caller(review.status)

    def _caller(self, status: ReviewStatus) -> Caller | None:
        account = account_of(status.user.username)
        # Without audiences in the answer, the server did not look at them.
        if not status.authenticated or account is None or not {*status.audiences} & {*self._audiences}:
            return None
        return Caller(f"serviceaccount:{account}", self._scopes.get(account, frozenset()))


def account_of(username: str) -> Key | None:
    namespace, _, name = username.removeprefix(_USER).partition(":")
    return Key(namespace, name) if username.startswith(_USER) and namespace and name else None


def claims_of(token: str) -> Claims | None:
    """What stands in the middle of a JSON web token; None where it is none."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(payload, type=Claims)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None
