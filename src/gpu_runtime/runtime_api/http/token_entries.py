"""The entries of the token file: parses them, checks that tokens cannot be guessed, and creates new entries. Pure.

An entry contains the token or only its digest. An invalid entry does not affect the other entries. Otherwise an error
in one entry would delay the revocation of another token.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta

from gpu_runtime.process.settings import BaseSettings, InvalidSettings, convert_settings
from gpu_runtime.runtime_api.http.route import Caller, Scope
from gpu_runtime.runtime_api.settings import ScopeName

MIN_TOKEN_LENGTH = 24
"""A random hexadecimal token of this length has 96 bits."""
MIN_DISTINCT_CHARACTERS = 8
MIN_REDACTED_LENGTH = 12
NEW_TOKEN_BYTES = 32
DIGEST_PREFIX = "sha256:"

_DIGEST_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")


class TokenEntry(BaseSettings, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    """The name of the caller that has the token. Logs, the audit log and the rate limit use this name."""

    scopes: Annotated[tuple[ScopeName, ...], Meta(min_length=1)]
    """The scopes of the caller: operator, runtime, worker. Only the activator needs the scope worker."""

    token: str = ""
    """The secret token. The model has no constraint for it, because an error message would contain the token."""

    digest: str = ""
    """The SHA-256 digest of the token, as `sha256:` and 64 hexadecimal digits. An entry has either a token or a
    digest."""

    expires_at: Annotated[datetime, Meta(tz=True)] | None = None
    """The time at which the token becomes invalid, in the format of RFC 3339. Without it, the token does not expire."""


class TokenList(BaseSettings, frozen=True, kw_only=True):
    tokens: tuple[Any, ...]
    """All entries. Each of them is checked separately."""


@dataclass(frozen=True)
class KnownToken:
    caller: Caller
    expires_at: datetime | None = None


@dataclass(frozen=True)
class ParsedTokens:
    by_digest: Mapping[bytes, KnownToken] = field(default_factory=dict)
    problems: Sequence[str] = ()
    """One sentence for each broken entry. It names the entry and the remedy, and contains no token."""

    def find(self, token: str) -> KnownToken | None:
        """Return the entry of this token, or None. The search takes the same time for every token."""
        digest = token_digest(token)
        matches = [known for each, known in self.by_digest.items() if hmac.compare_digest(each, digest)]
        return matches[0] if matches else None


def parse_tokens(document: TokenList) -> ParsedTokens:
    """Parse all entries. If several entries have the same name or the same token, the first one is valid."""
    by_digest: dict[bytes, KnownToken] = {}
    names, problems = set[str](), list[str]()
    for index, raw in enumerate(document.tokens):
        try:
            entry = _parse_entry(raw, index)
            _check_unique(entry, index, names, by_digest)
        except InvalidSettings as error:
            problems.append(str(error))
            continue
        names.add(entry.name)
        caller = Caller(f"token:{entry.name}", frozenset(map(Scope, entry.scopes)))
        by_digest[_entry_digest(entry)] = KnownToken(caller, entry.expires_at)
    return ParsedTokens(by_digest, problems)


def new_token() -> str:
    return secrets.token_urlsafe(NEW_TOKEN_BYTES)


def token_digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _parse_entry(raw: Any, index: int) -> TokenEntry:
    if not isinstance(raw, dict):
        raise InvalidSettings(f"tokens[{index}]: expected a section with name, scopes, and token or digest")
    try:
        entry = convert_settings(raw, TokenEntry)
    except InvalidSettings as error:
        raise InvalidSettings(f"tokens[{index}].{_redact(str(error), raw)}") from None
    if problems := list(_secret_problems(entry)):
        raise InvalidSettings(f"{_entry_name(entry, index)}: {'; '.join(problems)}")
    return entry


def _secret_problems(entry: TokenEntry) -> Iterator[str]:
    if bool(entry.token) == bool(entry.digest):
        yield "expected either token or digest"
    elif entry.digest:
        if not _DIGEST_PATTERN.fullmatch(entry.digest):
            yield "digest is not sha256: and 64 hexadecimal digits; create the entry with `gpu-runtime tokens create`"
    else:
        yield from _token_problems(entry.token)


def _token_problems(token: str) -> Iterator[str]:
    if len(token) < MIN_TOKEN_LENGTH:
        yield f"token has {len(token)} characters; use at least {MIN_TOKEN_LENGTH}"
    elif len(set(token)) < MIN_DISTINCT_CHARACTERS or _is_repetition(token):
        yield "token can be guessed; create a random one with `gpu-runtime tokens create`"
    if not token.isascii() or not token.isprintable() or " " in token:
        yield "token has characters that are not allowed in a header; use letters, digits and punctuation"


def _is_repetition(token: str) -> bool:
    """Return whether the token repeats a shorter text, as `secret-secret-secret-` does. The last part may be cut."""
    return any(token.startswith(token[period:]) for period in range(1, len(token) // 2 + 1))


def _check_unique(entry: TokenEntry, index: int, names: set[str], by_digest: Mapping[bytes, KnownToken]) -> None:
    if entry.name in names:
        raise InvalidSettings(f"{_entry_name(entry, index)}: another token has the same name; use one name per token")
    if _entry_digest(entry) in by_digest:
        raise InvalidSettings(
            f"{_entry_name(entry, index)}: another entry has the same token; use one token per caller"
        )


def _entry_digest(entry: TokenEntry) -> bytes:
    return bytes.fromhex(entry.digest.removeprefix(DIGEST_PREFIX)) if entry.digest else token_digest(entry.token)


def _entry_name(entry: TokenEntry, index: int) -> str:
    return f"tokens[{index}] ({entry.name})"


def _redact(message: str, raw: Mapping[str, Any]) -> str:
    """Remove the values of the entry from the message, because an operator may have put the token in a wrong field."""
    for value in (each for field_value in raw.values() for each in _texts(field_value)):
        if len(value) >= MIN_REDACTED_LENGTH:
            message = message.replace(value, "...")
    return message


def _texts(value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, str):
            yield each
