"""Reads the signing keys of the cluster, and verifies tokens of service accounts with them.

The keys stay in memory, so tokens can be verified while the API server is unreachable.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.service_account_tokens import (
    SigningKeys,
    TokenClaims,
    check_claims,
    check_signature,
    decode_token,
    parse_signing_keys,
)

logger = logging.getLogger(__name__)

OPENID_CONFIGURATION_PATH = "/.well-known/openid-configuration"
KEY_SET_PATH = "/openid/v1/jwks"
KEY_READ_INTERVAL_SECONDS = 300.0
"""A key that the cluster no longer publishes is rejected after at most this time."""
MIN_KEY_READ_INTERVAL_SECONDS = 10.0
"""Without this limit, each token with an unknown key ID would cost two requests to the API server."""


@dataclass
class ServiceAccountVerifier:
    """Verifies tokens for the audiences. `now` is the wall clock, because a token expires at a wall-clock time."""

    client: KubeClient
    audiences: Sequence[str]
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    _published: SigningKeys | None = None
    _read_at: float = float("-inf")
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def verify(self, token: str) -> TokenClaims:
        """Return the claims of a valid token.

        Raises InvalidServiceAccountToken, and KubeError if the process has never read the keys.
        """
        decoded = decode_token(token)
        check_claims(decoded.claims, self.audiences, self.now())
        check_signature(decoded, await self._keys_for(decoded.header.kid))
        return decoded.claims

    async def watch(self) -> NoReturn:
        """Read the keys regularly, until cancelled. So a key that the cluster no longer publishes becomes invalid."""
        while True:
            try:
                async with self._lock:
                    await self._read()
            except KubeError as error:
                _log_failed_read(error)
            await asyncio.sleep(KEY_READ_INTERVAL_SECONDS)

    async def _keys_for(self, key_id: str) -> SigningKeys:
        """Return the keys. Read them again if the key ID is unknown, but not more often than the interval allows."""
        if self._published is None or key_id not in self._published.keys:
            async with self._lock:  # concurrent requests share one read
                await self._read_if_due(key_id)
        if self._published is None:
            raise KubeError("the signing keys of the cluster could not be read; the next attempt follows within 10 s")
        return self._published

    async def _read_if_due(self, key_id: str) -> None:
        is_known = self._published is not None and key_id in self._published.keys
        if is_known or self.monotonic() < self._read_at + MIN_KEY_READ_INTERVAL_SECONDS:
            return
        try:
            await self._read()
        except KubeError as error:
            if self._published is None:
                raise
            _log_failed_read(error)

    async def _read(self) -> None:
        self._read_at = self.monotonic()
        configuration = await self.client.read_path(OPENID_CONFIGURATION_PATH)
        self._published = parse_signing_keys(configuration, await self.client.read_path(KEY_SET_PATH))


def _log_failed_read(error: KubeError) -> None:
    logger.warning(
        "signing keys of the cluster cannot be read; keys that were read before stay valid", extra={"error": str(error)}
    )
