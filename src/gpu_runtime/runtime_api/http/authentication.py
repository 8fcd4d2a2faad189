"""Authenticates callers by bearer token. The token is in the token file, or it belongs to a service account."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

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

MAX_TOKEN_LENGTH = 16 * 1024
_BEARER_HINT = "send 'Authorization: Bearer TOKEN'"


class BearerAuthenticator:
    """Looks up the token in the token file first, because this needs no request. Then asks Kubernetes."""

    def __init__(self, tokens: TokenFile | None, reviewer: TokenReviewer | None) -> None:
        self._token_file = tokens
        self._reviewer = reviewer

    async def authenticate(self, authorization: str | None) -> Caller:
        token = parse_bearer_token(authorization)
        caller = self._token_file.find_caller(token) if self._token_file else None
        if caller is None and self._reviewer is not None:
            caller = await self._reviewer.find_caller(token)
        if caller is None:
            raise Unauthenticated("the bearer token is unknown or no longer valid; send a valid token")
        return caller


def parse_bearer_token(authorization: str | None) -> str:
    if not authorization:
        raise Unauthenticated(f"the request has no Authorization header; {_BEARER_HINT}")
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_LENGTH:
        raise Unauthenticated(f"the Authorization header has no bearer token; {_BEARER_HINT}")
    return token


def build_authenticator(
    settings: AuthenticationSettings, client: KubeClient
) -> tuple[Authenticator, Sequence[Callable[[], Coroutine[Any, Any, object]]]]:
    """Build the authenticator, and return it with the background tasks that it needs.

    Raises InvalidSettings if authentication is required and no caller is configured.
    """
    if settings.mode == "off":
        logger.warning("authentication is disabled; every caller has every scope")
        return AnonymousAuthenticator(), ()
    if not settings.token_file and not settings.service_accounts:
        raise InvalidSettings(
            "authentication: no caller is configured; set tokenFile or serviceAccounts, or set mode: off if no other"
            " machine can reach the API"
        )
    tokens = _load_token_file(settings.token_file) if settings.token_file else None
    reviewer = _build_token_reviewer(settings, client) if settings.service_accounts else None
    return BearerAuthenticator(tokens, reviewer), (tokens.watch,) if tokens else ()


def _load_token_file(path: str) -> TokenFile:
    try:
        return TokenFile(Path(path))
    except InvalidSettings as error:
        raise InvalidSettings(
            f"authentication.tokenFile: {error}; correct the file, or the Secret that it is mounted from"
        ) from error


def _build_token_reviewer(settings: AuthenticationSettings, client: KubeClient) -> TokenReviewer:
    scopes = {
        ObjectKey(each.namespace, each.name): frozenset(map(Scope, each.scopes)) for each in settings.service_accounts
    }
    return TokenReviewer(client, settings.audiences, scopes)
