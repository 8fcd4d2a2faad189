"""Authenticates callers by bearer token. The token is in the token file, or it belongs to a service account."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from prometheus_client import CollectorRegistry

from gpu_runtime.contract.errors import Unauthenticated
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.service_account_verifier import ServiceAccountVerifier
from gpu_runtime.process.health_server import HealthCheck
from gpu_runtime.process.settings import InvalidSettings
from gpu_runtime.runtime_api.http.route import ANONYMOUS, Caller, Scope
from gpu_runtime.runtime_api.http.token_file import TokenFile, TokenFileMetrics
from gpu_runtime.runtime_api.http.token_review import TokenReviewer
from gpu_runtime.runtime_api.settings import AuthenticationSettings

logger = logging.getLogger(__name__)

MAX_TOKEN_LENGTH = 16 * 1024
_BEARER_HINT = "send 'Authorization: Bearer TOKEN'"


class Authenticator(Protocol):
    async def authenticate(self, authorization: str | None) -> Caller:
        """Return the caller that sent this Authorization header.

        Raises Unauthenticated if the header identifies no caller, and Unavailable if the token cannot be verified now.
        """
        ...


class AnonymousAuthenticator:
    """Grants every scope to every caller."""

    async def authenticate(self, authorization: str | None) -> Caller:  # noqa: ARG002 - the header is not checked
        return ANONYMOUS


class BearerAuthenticator:
    """Looks up the token in the token file first, because this needs no request. Then verifies it as the token of a
    service account."""

    def __init__(self, tokens: TokenFile | None, reviewer: TokenReviewer | None) -> None:
        self._token_file = tokens
        self._reviewer = reviewer

    async def authenticate(self, authorization: str | None) -> Caller:
        token = parse_bearer_token(authorization)
        if self._token_file is not None and (caller := self._token_file.find_caller(token)) is not None:
            return caller
        if self._reviewer is not None:
            return await self._reviewer.find_caller(token)
        raise Unauthenticated("the bearer token is unknown or no longer valid; send a valid token")


def parse_bearer_token(authorization: str | None) -> str:
    if not authorization:
        raise Unauthenticated(f"the request has no Authorization header; {_BEARER_HINT}")
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_LENGTH:
        raise Unauthenticated(f"the Authorization header has no bearer token; {_BEARER_HINT}")
    return token


class Authentication(NamedTuple):
    authenticator: Authenticator
    background_tasks: Sequence[Callable[[], Coroutine[Any, Any, object]]] = ()
    token_file_problem: HealthCheck = lambda: None


def build_authenticator(
    settings: AuthenticationSettings, client: KubeClient, registry: CollectorRegistry | None = None
) -> Authentication:
    """Build the authenticator, and return it with the background tasks that it needs.

    Raises InvalidSettings if authentication is required and no caller is configured.
    """
    if settings.mode == "off":
        logger.warning("authentication is disabled; every caller has every scope")
        return Authentication(AnonymousAuthenticator())
    if not settings.token_file and not settings.service_accounts:
        raise InvalidSettings(
            "authentication: no caller is configured; set tokenFile or serviceAccounts, or set mode: off if no other"
            " machine can reach the API"
        )
    tokens = _load_token_file(settings, TokenFileMetrics(registry)) if settings.token_file else None
    reviewer = _build_token_reviewer(settings, client) if settings.service_accounts else None
    watchers = (tokens, reviewer.verifier if reviewer else None)
    return Authentication(
        BearerAuthenticator(tokens, reviewer),
        [each.watch for each in watchers if each is not None],
        tokens.problem if tokens else lambda: None,
    )


def _load_token_file(settings: AuthenticationSettings, metrics: TokenFileMetrics) -> TokenFile:
    try:
        return TokenFile(Path(settings.token_file), settings.token_file_grace_seconds, metrics)
    except InvalidSettings as error:
        raise InvalidSettings(
            f"authentication.tokenFile: {error}; correct the file, or the Secret that it is mounted from"
        ) from error


def _build_token_reviewer(settings: AuthenticationSettings, client: KubeClient) -> TokenReviewer:
    scopes = {
        ObjectKey(each.namespace, each.name): frozenset(map(Scope, each.scopes)) for each in settings.service_accounts
    }
    return TokenReviewer(client, ServiceAccountVerifier(client, settings.audiences), scopes)
