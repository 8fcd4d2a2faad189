"""Callers with tokens of their own, from a file that may change at any time.

A mounted Secret is changed by swapping a symbolic link, which looks like another file behind the same path. A new file
that cannot be used changes nothing: the tokens from before stay good, and the log says so.
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
    """Who has it. Calls are logged, limited and audited under this name."""

    token: str
    """The secret itself. There is no constraint here: a refusal must not quote it."""

    scopes: Annotated[tuple[Literal["operator", "runtime"], ...], Meta(min_length=1)]
    """What its holder is trusted with."""


class TokenList(BaseSettings, frozen=True, kw_only=True):
    tokens: tuple[TokenEntry, ...]
    """Every token that is good."""


@dataclass(frozen=True)
class _TokenDigest:
    digest: bytes
    caller: Caller


class TokenFile:
    def __init__(self, path: Path) -> None:
        """Read the file. BadSettings, with the remedy, where that cannot be done."""
        self._path = path
        self._loaded_version = _file_version(path)
        self._tokens = _load_tokens(path)

    def find_caller(self, token: str) -> Caller | None:
        """Whose token it is. However much of it is right, finding out takes the same time."""
        digest = _digest(token)
        matches = [known.caller for known in self._tokens if hmac.compare_digest(known.digest, digest)]
        return matches[0] if matches else None

    async def watch(self) -> NoReturn:
        """Keep up with the file until cancelled."""
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
        except InvalidSettings as bad:
            logger.error(  # noqa: TRY400 - the sentence says it all
                "the new token file cannot be used; the tokens from before stay good: %s", bad
            )
        else:
            logger.info("tokens read anew", extra={"file": str(self._path), "tokens": len(self._tokens)})


def _file_version(path: Path) -> tuple[int, ...]:
    """Another one for every file that was ever behind this path; nothing where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)


def _load_tokens(path: Path) -> tuple[_TokenDigest, ...]:
    entries = load_settings(path, TokenList).tokens
    if problems := list(_problems(entries)):
        raise InvalidSettings(f"{path}: {'; '.join(problems)}")
    return tuple(_TokenDigest(_digest(each.token), _caller(each)) for each in entries)


def _problems(entries: tuple[TokenEntry, ...]) -> Iterator[str]:
    names, digests = set[str](), set[bytes]()
    for index, entry in enumerate(entries):
        at, digest = f"tokens[{index}] ({entry.name})", _digest(entry.token)
        if len(entry.token) < MIN_TOKEN_LENGTH:
            yield f"{at}: token has {len(entry.token)} characters; use at least {MIN_TOKEN_LENGTH}"
        if not entry.token.isascii() or not entry.token.isprintable() or " " in entry.token:
            yield f"{at}: token has characters that no header can carry; use letters, digits and punctuation"
        if entry.name in names:
            yield f"{at}: another token has this name already; every holder has its own"
        if digest in digests:
            yield f"{at}: token is the same as another one; every holder has its own"
        names.add(entry.name)
        digests.add(digest)


def _caller(entry: TokenEntry) -> Caller:
    return Caller(f"token:{entry.name}", frozenset(map(Scope, entry.scopes)))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
