"""Authenticates callers with the tokens of a file, and reloads the file when it changes.

Kubernetes updates a mounted Secret by swapping a symbolic link, so that the same path leads to another file. If the new
file is invalid, the previous tokens stay valid and the error is logged.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from msgspec import Meta

from gpu_runtime.process.settings import BaseSettings, InvalidSettings, load_settings
from gpu_runtime.runtime_api.http.caller import Caller
from gpu_runtime.runtime_api.http.route import Scope

logger = logging.getLogger(__name__)

MIN_TOKEN_LENGTH = 16
POLL_INTERVAL_SECONDS = 1.0


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


@dataclass(frozen=True)
class _TokenDigest:
    digest: bytes
    caller: Caller


class TokenFile:
    def __init__(self, path: Path) -> None:
        """Load the file. Raises InvalidSettings if the file cannot be read or is invalid."""
        self._path = path
        self._loaded_version = _file_version(path)
        self._tokens = _load_tokens(path)

    def find_caller(self, token: str) -> Caller | None:
        """Return the caller that has this token, or None.

        The search takes the same time for every token, to prevent timing attacks.
        """
        digest = _digest(token)
        matches = [each.caller for each in self._tokens if hmac.compare_digest(each.digest, digest)]
        return matches[0] if matches else None

    async def watch(self) -> NoReturn:
        """Reload the file whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
            await asyncio.to_thread(self.reload_if_changed)

    def reload_if_changed(self) -> None:
        version = _file_version(self._path)
        if version == self._loaded_version:
            return
        self._loaded_version = version
        try:
            self._tokens = _load_tokens(self._path)
        except InvalidSettings as error:
            logger.error(  # noqa: TRY400 - the message of the error is enough
                "token file reload failed; the previous tokens stay valid",
                extra={"file": str(self._path), "error": str(error)},
            )
        else:
            logger.info("token file reloaded", extra={"file": str(self._path), "count": len(self._tokens)})


def _file_version(path: Path) -> tuple[int, ...]:
    """Return a value that changes if the path leads to another file or the file changes. Empty if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)


def _load_tokens(path: Path) -> tuple[_TokenDigest, ...]:
    entries = load_settings(path, TokenList).tokens
    if problems := list(_problems(entries)):
        raise InvalidSettings(f"{path}: {'; '.join(problems)}")
    return tuple(
        _TokenDigest(_digest(each.token), Caller(f"token:{each.name}", frozenset(map(Scope, each.scopes))))
        for each in entries
    )


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
