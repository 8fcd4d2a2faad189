"""Attacks with tokens of the token file: revoked, expired and guessable ones."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from gpu_runtime.contract.errors import Unauthenticated
from gpu_runtime.runtime_api.http.authentication import build_authenticator
from gpu_runtime.runtime_api.settings import AuthenticationSettings
from tests.token_signer import FakeTokenIssuer

LEAKED, OTHER = "leaked-8Zt3kQw1pXv7rN5m-c4", "other-V2cJ6yLs9dHf4gTbE0u-q1"


def write(path: Path, **tokens: str) -> None:
    entries = [{"name": name, "token": token, "scopes": ["runtime"]} for name, token in tokens.items()]
    path.write_text(yaml.safe_dump({"tokens": entries}))


class RunningAuthenticator:
    """An authenticator with its background tasks."""

    def __init__(self, settings: AuthenticationSettings) -> None:
        self._authenticator, self._background, *_ = build_authenticator(settings, FakeTokenIssuer())

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(task()) for task in self._background]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def accepts(self, token: str) -> bool:
        try:
            await self._authenticator.authenticate(f"Bearer {token}")
        except Unauthenticated:
            return False
        return True

    async def rejects(self, token: str) -> bool:
        return not await self.accepts(token)


async def becomes_true(condition: Callable[[], Awaitable[bool]], seconds: float = 15) -> bool:
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        if await condition():
            return True
        await asyncio.sleep(0.05)
    return False


BREAK: dict[str, Callable[[Path], Any]] = {
    "deleted file": lambda path: path.unlink(),
    "broken file": lambda path: path.write_text("tokens: ["),
}


@pytest.mark.parametrize("make_broken", BREAK.values(), ids=BREAK)
async def test_revoked_token_does_not_stay_valid_because_of_a_broken_token_file(
    tmp_path: Path, make_broken: Callable[[Path], Any]
) -> None:
    """An operator wants to revoke a leaked token, and deletes or breaks the file."""
    path = tmp_path / "tokens.yaml"
    write(path, leaked=LEAKED)
    async with RunningAuthenticator(
        AuthenticationSettings(token_file=str(path), token_file_grace_seconds=2)
    ) as running:
        assert await running.accepts(LEAKED)
        make_broken(path)
        assert await becomes_true(lambda: running.rejects(LEAKED))


async def test_revoked_token_does_not_stay_valid_because_of_another_broken_entry(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    write(path, leaked=LEAKED, other=OTHER)
    async with RunningAuthenticator(AuthenticationSettings(token_file=str(path))) as running:
        assert await running.accepts(LEAKED)
        write(path, other=OTHER, broken="too-short")
        assert await becomes_true(lambda: running.rejects(LEAKED))
        assert await running.accepts(OTHER)


async def test_expired_token_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    entry = {"name": "old", "token": LEAKED, "scopes": ["runtime"]}
    path.write_text(yaml.safe_dump({"tokens": [entry | {"expiresAt": datetime.now(UTC) - timedelta(seconds=1)}]}))
    authenticator, *_ = build_authenticator(AuthenticationSettings(token_file=str(path)), FakeTokenIssuer())
    with pytest.raises(Unauthenticated, match="the bearer token expired at"):
        await authenticator.authenticate(f"Bearer {LEAKED}")


@pytest.mark.parametrize("token", ["a" * 40, "password" * 5, "0123" * 8, "abcdefabcdefabcdefabcdefabcdefabc"])
async def test_guessable_token_is_not_accepted(tmp_path: Path, token: str) -> None:
    path = tmp_path / "tokens.yaml"
    write(path, guessable=token, other=OTHER)
    authenticator, *_ = build_authenticator(AuthenticationSettings(token_file=str(path)), FakeTokenIssuer())
    with pytest.raises(Unauthenticated):
        await authenticator.authenticate(f"Bearer {token}")


async def test_stolen_token_file_with_digests_contains_no_usable_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    digest = "sha256:a2b4c6d8e0f1a3b5c7d9e1f0a2b4c6d8e0f1a3b5c7d9e1f0a2b4c6d8e0f1a3b5"
    path.write_text(yaml.safe_dump({"tokens": [{"name": "shop", "digest": digest, "scopes": ["runtime"]}]}))
    authenticator, *_ = build_authenticator(AuthenticationSettings(token_file=str(path)), FakeTokenIssuer())
    for stolen in (digest, digest.removeprefix("sha256:")):
        with pytest.raises(Unauthenticated):
            await authenticator.authenticate(f"Bearer {stolen}")
