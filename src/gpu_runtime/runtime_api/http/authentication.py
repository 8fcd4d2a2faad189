"""Who calls: `Authorization: Bearer` with a token of the token file, or of one of the cluster's service accounts."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from gpu_runtime.contract.errors import Unauthenticated
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.process.settings import InvalidSettings
from gpu_runtime.runtime_api.http.caller import AnonymousAuthenticator, Authenticator, Caller
from gpu_runtime.runtime_api.http.route import Scope
from gpu_runtime.runtime_api.http.token_file import TokenFile
from gpu_runtime.runtime_api.http.token_review import TokenReviewer
from gpu_runtime.runtime_api.settings import AuthenticationSettings

logger = logging.getLogger(__name__)

TokenLookup: TypeAlias = Callable[[str], Awaitable[Caller | None]]
"""Whose token it is, of those it knows."""

MAX_TOKEN_LENGTH = 16 * 1024
_BEARER_HINT = "send 'Authorization: Bearer TOKEN'"


class BearerAuthenticator:
    """Asks the file first, which costs nothing, and then the cluster."""

    def __init__(self, tokens: TokenFile | None, reviewer: TokenReviewer | None) -> None:
        self._token_file = tokens
        self._reviewer = reviewer

    async def authenticate(self, authorization: str | None) -> Caller:
        token = parse_bearer_token(authorization)
        found = self._token_file.find_caller(token) if self._token_file else None
        if found is None and self._reviewer is not None:
            found = await self._reviewer.find_caller(token)
        if found is None:
            raise Unauthenticated("the token is not known here, or no longer good")
        return found


def parse_bearer_token(authorization: str | None) -> str:
    if not authorization:
        raise Unauthenticated(f"the caller must say who it is; {_BEARER_HINT}")
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_LENGTH:
        raise Unauthenticated(f"the Authorization header has no bearer token; {_BEARER_HINT}")
    return token


def build_authenticator(
    settings: AuthenticationSettings, client: KubeClient
) -> tuple[Authenticator, Sequence[Callable[[], Awaitable[object]]]]:
    """Whoever finds out who calls, and what must run in the background for it. BadSettings where nobody could call."""
    if settings.mode == "off":
        logger.warning("authentication is off: everybody who reaches this port may do everything")
        return AnonymousAuthenticator(), ()
    if not settings.token_file and not settings.service_accounts:
        raise InvalidSettings(
            "authentication: nobody could call; give a tokenFile or serviceAccounts, or set mode: off where nobody"
            " else can reach the API"
        )
    tokens = _load_token_file(settings.token_file) if settings.token_file else None
    reviewer = _build_token_reviewer(settings, client) if settings.service_accounts else None
    return BearerAuthenticator(tokens, reviewer), (tokens.watch,) if tokens else ()


def _load_token_file(path: str) -> TokenFile:
    try:
        return TokenFile(Path(path))
    except InvalidSettings as bad:
        raise InvalidSettings(
            f"authentication.tokenFile: {bad}; correct the file, or the Secret it is mounted from"
        ) from bad


def _build_token_reviewer(settings: AuthenticationSettings, client: KubeClient) -> TokenReviewer:
    scopes = {
        ObjectKey(each.namespace, each.name): frozenset(map(Scope, each.scopes)) for each in settings.service_accounts
    }
    return TokenReviewer(client, settings.audiences, scopes)
