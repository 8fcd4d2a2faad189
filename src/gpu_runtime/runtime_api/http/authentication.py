"""Authenticates callers by bearer token. The token is in the token file, or it belongs to a service account.

The API reloads the token file when the file changes. Kubernetes updates a mounted Secret by swapping a symbolic link,
so that the same path leads to another file. If the new file is invalid, the previous tokens stay valid and the error is
logged.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Protocol

from msgspec import Meta

from gpu_runtime.contract.errors import Unauthenticated
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.process.settings import BaseSettings, InvalidSettings, load_settings
from gpu_runtime.runtime_api.http.route import ANONYMOUS, Caller, Scope
from gpu_runtime.runtime_api.http.token_review import TokenReviewer
from gpu_runtime.runtime_api.settings import AuthenticationSettings

logger = logging.getLogger(__name__)

MAX_TOKEN_LENGTH = 16 * 1024
MIN_TOKEN_LENGTH = 16
TOKEN_FILE_POLL_INTERVAL_SECONDS = 1.0
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
    """Looks up the token in the token file first, because this needs no request. Then asks Kubernetes."""

    def __init__(self, tokens: "TokenFile | None", reviewer: TokenReviewer | None) -> None:
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


class TokenEntry(BaseSettings, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    """The name of the caller that has the token. Logs, the audit log and the rate limit use this name."""

    token: str
    """The secret token. The model has no constraint for it, because an error message would contain the token."""

    scopes: Annotated[tuple[Literal["operator", "runtime"], ...], Meta(min_length=1)]
    """The scopes of the caller: operator, runtime or both."""


class TokenList(BaseSettings, frozen=True, kw_only=True):
    tokens: tuple[TokenEntry, ...]
    """All valid tokens."""


class TokenFile:
    def __init__(self, path: Path) -> None:
        """Load the file. Raises InvalidSettings if the file cannot be read or is invalid."""
        self._path = path
        self._loaded_version = _file_version(path)
        self._callers = _load_callers(path)

    def find_caller(self, token: str) -> Caller | None:
        """Return the caller that has this token, or None.

        The search takes the same time for every token, to prevent timing attacks.
        """
        digest = _digest(token)
        matches = [caller for known, caller in self._callers.items() if hmac.compare_digest(known, digest)]
        return matches[0] if matches else None

    async def watch(self) -> NoReturn:
        """Reload the file whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(TOKEN_FILE_POLL_INTERVAL_SECONDS)
            await asyncio.to_thread(self.reload_if_changed)

    def reload_if_changed(self) -> None:
        version = _file_version(self._path)
        if version == self._loaded_version:
            return
        self._loaded_version = version
        try:
            self._callers = _load_callers(self._path)
        except InvalidSettings as error:
            logger.error(  # noqa: TRY400 - the message of the error is enough
                "token file reload failed; the previous tokens stay valid",
                extra={"file": str(self._path), "error": str(error)},
            )
        else:
            logger.info("token file reloaded", extra={"file": str(self._path), "count": len(self._callers)})


def _file_version(path: Path) -> tuple[int, ...]:
    """Return a value that changes if the path leads to another file or the file changes. Empty if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)


def _load_callers(path: Path) -> dict[bytes, Caller]:
    """Return the callers by the digest of their token. Raises InvalidSettings."""
    entries = load_settings(path, TokenList).tokens
    if problems := list(_problems(entries)):
        raise InvalidSettings(f"{path}: {'; '.join(problems)}")
    return {_digest(each.token): Caller(f"token:{each.name}", frozenset(map(Scope, each.scopes))) for each in entries}


def _problems(entries: tuple[TokenEntry, ...]) -> Iterator[str]:
    names, digests = set[str](), set[bytes]()
    for index, entry in enumerate(entries):
        field, digest = f"tokens[{index}] ({entry.name})", _digest(entry.token)
        if len(entry.token) < MIN_TOKEN_LENGTH:
            yield f"{field}: token has {len(entry.token)} characters; use at least {MIN_TOKEN_LENGTH}"
        if not entry.token.isascii() or not entry.token.isprintable() or " " in entry.token:
            yield f"{field}: token has characters that are not allowed in a header; use letters, digits and punctuation"
        if entry.name in names:
            yield f"{field}: another token has the same name; use one name per token"
        if digest in digests:
            yield f"{field}: another entry has the same token; use one token per caller"
        names.add(entry.name)
        digests.add(digest)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


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
