"""Who calls: `Authorization: Bearer` with a token of the token file, or of one of the cluster's service accounts."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from gpu_runtime.contract.errors import Unauthenticated
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.meta import Key
from gpu_runtime.process.settings import BadSettings
from gpu_runtime.runtime_api.http.caller import Authenticator, Caller, Open
from gpu_runtime.runtime_api.http.route import Scope
from gpu_runtime.runtime_api.http.token_file import TokenFile
from gpu_runtime.runtime_api.http.token_review import TokenReviewer
from gpu_runtime.runtime_api.settings import Authentication

logger = logging.getLogger(__name__)

Source: TypeAlias = Callable[[str], Awaitable[Caller | None]]
"""Whose token it is, of those it knows."""

LONGEST_TOKEN = 16 * 1024
_HOW = "send 'Authorization: Bearer TOKEN'"


class Bearer:
    """Asks the file first, which costs nothing, and then the cluster."""

    def __init__(self, tokens: TokenFile | None, reviewer: TokenReviewer | None) -> None:
        self._tokens = tokens
        self._reviewer = reviewer

    async def caller(self, authorization: str | None) -> Caller:
        token = bearer_token(authorization)
        found = self._tokens.find(token) if self._tokens else None
        if found is None and self._reviewer is not None:
            found = await self._reviewer.find(token)
        if found is None:
            raise Unauthenticated("the token is not known here, or no longer good")
        return found


def bearer_token(authorization: str | None) -> str:
    if not authorization:
        raise Unauthenticated(f"the caller must say who it is; {_HOW}")
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
        raise Unauthenticated(f"the Authorization header has no bearer token; {_HOW}")
    return token


def authenticator(
    settings: Authentication, client: Client
) -> tuple[Authenticator, Sequence[Callable[[], Awaitable[object]]]]:
    """Whoever finds out who calls, and what must run in the background for it. BadSettings where nobody could call."""
    if settings.mode == "off":
        logger.warning("authentication is off: everybody who reaches this port may do everything")
        return Open(), ()
    if not settings.token_file and not settings.service_accounts:
        raise BadSettings(
            "authentication: nobody could call; give a tokenFile or serviceAccounts, or set mode: off where nobody"
            " else can reach the API"
        )
    tokens = _token_file(settings.token_file) if settings.token_file else None
    reviewer = _reviewer(settings, client) if settings.service_accounts else None
    return Bearer(tokens, reviewer), (tokens.follow,) if tokens else ()


def _token_file(path: str) -> TokenFile:
    try:
        return TokenFile(Path(path))
    except BadSettings as bad:
        raise BadSettings(
            f"authentication.tokenFile: {bad}; correct the file, or the Secret it is mounted from"
        ) from bad


def _reviewer(settings: Authentication, client: Client) -> TokenReviewer:
    scopes = {Key(each.namespace, each.name): frozenset(map(Scope, each.scopes)) for each in settings.service_accounts}
    return TokenReviewer(client, settings.audiences, scopes)
