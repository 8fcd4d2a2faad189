"""Watches the token file.

Kubernetes updates a mounted Secret by swapping a symbolic link, so that the same path leads to another file. A file is
broken if it cannot be read, is not YAML, has no list `tokens`, or has only invalid entries. Then the previous tokens
stay valid for a limited time. After that, no token of the file is valid, because one of them may have been revoked.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

from prometheus_client import CollectorRegistry, Gauge

from gpu_runtime.contract.errors import Unauthenticated
from gpu_runtime.process.health_server import HealthWarning
from gpu_runtime.process.settings import InvalidSettings, load_settings
from gpu_runtime.runtime_api.http.route import Caller
from gpu_runtime.runtime_api.http.token_entries import KnownToken, ParsedTokens, TokenList, parse_tokens

logger = logging.getLogger(__name__)

TOKEN_FILE_POLL_INTERVAL_SECONDS = 1.0
EXPIRES_SOON = timedelta(days=7)


class TokenFileMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.file_error = Gauge(
            "gpu_runtime_token_file_error",
            "1 if the token file cannot be read, is not YAML, has no list tokens, or has only invalid entries,"
            " otherwise 0",
            registry=registry,
        )
        self.tokens = Gauge(
            "gpu_runtime_tokens",
            "Number of entries in the token file by state: valid, expires_soon (within 7 days), expired, or invalid"
            " (the entry is broken)",
            ["state"],
            registry=registry,
        )

    def report(self, tokens: ParsedTokens, error: str | None, now: datetime) -> None:
        self.file_error.set(1 if error else 0)
        states = [token_state(each, now) for each in tokens.by_digest.values()] + ["invalid"] * len(tokens.problems)
        for state in ("valid", "expires_soon", "expired", "invalid"):
            self.tokens.labels(state).set(states.count(state))


class TokenFile:
    def __init__(
        self,
        path: Path,
        grace_seconds: float,
        metrics: TokenFileMetrics,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load the file. Raises InvalidSettings if the file is broken."""
        self._path, self._grace_seconds, self._metrics = path, grace_seconds, metrics
        self._now, self._monotonic = now, monotonic
        self._loaded_version = _file_version(path)
        self._tokens = _load_tokens(path)
        self._error: str | None = None
        self._closed = False
        self._confirmed_at = monotonic()
        self._metrics.report(self._tokens, None, now())
        self._log_problems()

    def find_caller(self, token: str) -> Caller | None:
        """Return the caller that has this token, or None. Raises Unauthenticated if the token has expired."""
        known = self._tokens.find(token)
        # Checked here, too, so that a watch that hangs does not keep revoked tokens valid.
        if known is None or self._is_stale():
            return None
        if known.expires_at is not None and known.expires_at <= self._now():
            raise Unauthenticated(
                f"the bearer token expired at {known.expires_at.isoformat()}; ask an operator for a new token"
            )
        return known.caller

    def problem(self) -> str | None:
        """Return a warning for the readiness endpoint, or None.

        The replica stays ready: all replicas have the same file, and service accounts do not need it.
        """
        if self._is_stale():
            return HealthWarning(
                f"no token of the file is valid: {self._error or 'the process has not checked the file in time'}"
            )
        if self._error:
            return HealthWarning(f"the previous tokens stay valid for at most {self._grace_seconds:g} s: {self._error}")
        return HealthWarning("; ".join(self._tokens.problems)) if self._tokens.problems else None

    async def watch(self) -> NoReturn:
        """Reload the file whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(TOKEN_FILE_POLL_INTERVAL_SECONDS)
            await asyncio.to_thread(self.reload_if_changed)

    def reload_if_changed(self) -> None:
        version = _file_version(self._path)
        if version != self._loaded_version:
            self._loaded_version = version
            self._reload()
        if self._error is None:
            self._confirmed_at, self._closed = self._monotonic(), False
        elif self._is_stale() and not self._closed:
            self._closed = True
            logger.error(
                "token file is still broken; no token of the file is valid now", extra={"file": str(self._path)}
            )
        self._metrics.report(self._tokens, self._error, self._now())

    def _reload(self) -> None:
        try:
            self._tokens, self._error = _load_tokens(self._path), None
        except InvalidSettings as error:
            self._error = str(error)
            logger.error(  # noqa: TRY400 - the message of the error is enough
                "token file reload failed; the previous tokens stay valid for a limited time",
                extra={"file": str(self._path), "error": self._error, "grace_seconds": self._grace_seconds},
            )
        else:
            fields = {"file": str(self._path), "count": len(self._tokens.by_digest)}
            logger.info("token file reloaded", extra=fields)
            self._log_problems()

    def _log_problems(self) -> None:
        for problem in self._tokens.problems:
            logger.error("token file has an invalid entry", extra={"file": str(self._path), "error": problem})

    def _is_stale(self) -> bool:
        return self._monotonic() > self._confirmed_at + self._grace_seconds


def token_state(token: KnownToken, now: datetime) -> str:
    if token.expires_at is None:
        return "valid"
    if token.expires_at <= now:
        return "expired"
    return "expires_soon" if token.expires_at <= now + EXPIRES_SOON else "valid"


def _file_version(path: Path) -> tuple[int, ...]:
    """Return a value that changes if the path leads to another file or the file changes. Empty if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)


def _load_tokens(path: Path) -> ParsedTokens:
    """Return the entries of the file. Raises InvalidSettings if the file is broken."""
    tokens = parse_tokens(load_settings(path, TokenList))
    if tokens.problems and not tokens.by_digest:
        raise InvalidSettings(f"{path}: {'; '.join(tokens.problems)}")
    return tokens
