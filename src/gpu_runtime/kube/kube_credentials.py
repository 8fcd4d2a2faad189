"""Who this process is to the API server, and how that is renewed: certificates, tokens, token files, exec plugins.

What may change while the process runs is read again in time, and at once when the server
refuses it.
"""

import asyncio
import base64
import binascii
import datetime
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gpu_runtime.kube.errors import Misconfigured
from gpu_runtime.kube.meta import Wire

TOKEN_LIFETIME = 60.0
"""Seconds until a token file is read again. The kubelet renews tokens when a fifth of their life, minutes, is left."""
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True)
class Identity:
    """What a request carries to say who is calling."""

    authorization: str | None = field(default=None, repr=False)
    certificate: bytes | None = None
    """A client certificate in PEM."""
    key: bytes | None = field(default=None, repr=False)


class Credentials(Protocol):
    async def current(self) -> Identity:
        """The identity to use now. The same object as long as nothing changed."""
        ...

    def refused(self) -> bool:
        """The server did not accept the identity. Whether asking again may give another."""
        ...


class Fixed:
    """An identity that was written into the configuration."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    async def current(self) -> Identity:
        return self._identity

    def refused(self) -> bool:
        return False


class FromFiles:
    """An identity in files that others renew: a token, or a certificate and its key. What is inline needs no file."""

    def __init__(
        self,
        token: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        inline: Identity = Identity(),  # noqa: B008 - immutable
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token, self._certificate, self._key = token, certificate, key
        self._inline = inline
        self._clock = clock
        self._identity: Identity | None = None
        self._read_at = 0.0

    async def current(self) -> Identity:
        now = self._clock()
        if self._identity is None or now - self._read_at >= TOKEN_LIFETIME:
            fresh = self._read()
            self._identity = self._identity if fresh == self._identity else fresh
            self._read_at = now
        assert self._identity is not None  # noqa: S101
        return self._identity

    def refused(self) -> bool:
        self._identity = None
        return True

    def _read(self) -> Identity:
        token = _content(self._token)
        return Identity(
            authorization=bearer(token.decode().strip()) if token is not None else self._inline.authorization,
            certificate=self._inline.certificate or _content(self._certificate),
            key=self._inline.key or _content(self._key),
        )


@dataclass(frozen=True)
class Plugin:
    """A program that hands out credentials, as a kubeconfig names it."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    api_version: str = EXEC_VERSIONS[0]
    cluster: Mapping[str, Any] | None = None
    """What the program is told about the cluster, if it asked."""
    timeout: float = 60.0


class FromPlugin:
    """An identity that a program hands out, asked again when it expires or is refused."""

    def __init__(self, plugin: Plugin, now: Callable[[], datetime.datetime] | None = None) -> None:
        self._plugin = plugin
        self._now = now or (lambda: datetime.datetime.now(datetime.UTC))
        self._issued: _Issued | None = None
        self._asking = asyncio.Lock()

    async def current(self) -> Identity:
        if (issued := self._valid()) is not None:
            return issued.identity
        async with self._asking:  # many requests wait for one run of the program
            issued = self._valid() or await self._ask()
        return issued.identity

    def refused(self) -> bool:
        self._issued = None
        return True

    def _valid(self) -> "_Issued | None":
        issued = self._issued
        if issued is not None and issued.expires is not None and issued.expires <= self._now():
            return None
        return issued

    async def _ask(self) -> "_Issued":
        answer = await _run(self._plugin)
        self._issued = _issued(self._plugin, answer)
        return self._issued


def bearer(token: str) -> str:
    return f"Bearer {token}"


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def decoded(name: str, data: str) -> bytes:
    """The bytes of an inline field of a kubeconfig."""
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise Misconfigured(f"{name} is not base64: {error}") from error


@dataclass(frozen=True)
class _Issued:
    identity: Identity
    expires: datetime.datetime | None


class _ExecStatus(Wire, frozen=True, kw_only=True):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime.datetime | None = None


class _ExecCredential(Wire, frozen=True, kw_only=True):
    api_version: str
    kind: str
    status: _ExecStatus | None = None


def _content(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"credentials cannot be read: {error}") from error


async def _run(plugin: Plugin) -> bytes:
    asked: dict[str, Any] = {"interactive": False}
    if plugin.cluster is not None:
        asked["cluster"] = plugin.cluster
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": asked}
    env = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise Misconfigured(f"the credential plugin {plugin.command} cannot be started: {error}") from error
    return await _answer_of(process, plugin)


async def _answer_of(process: asyncio.subprocess.Process, plugin: Plugin) -> bytes:
    try:
        async with asyncio.timeout(plugin.timeout):
            answer, complaint = await process.communicate()
    except TimeoutError as error:
        raise Misconfigured(f"{plugin.command} gave no credentials within {plugin.timeout:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        words = complaint.decode(errors="replace").strip()[-500:]
        raise Misconfigured(f"{plugin.command} ended with {process.returncode}: {words}")
    return answer


def _issued(plugin: Plugin, answer: bytes) -> _Issued:
    try:
        credential = msgspec.json.decode(answer, type=_ExecCredential)
    except msgspec.DecodeError as error:
        raise Misconfigured(f"{plugin.command} did not answer with an ExecCredential: {error}") from error
    if credential.api_version != plugin.api_version:
        raise Misconfigured(f"{plugin.command} speaks {credential.api_version} and not {plugin.api_version}")
    status = credential.status
    if status is None or not (status.token or status.client_certificate_data):
        raise Misconfigured(f"{plugin.command} gave neither a token nor a certificate")
    identity = Identity(
        authorization=bearer(status.token) if status.token else None,
        certificate=status.client_certificate_data.encode() if status.client_certificate_data else None,
        key=status.client_key_data.encode() if status.client_key_data else None,
    )
    return _Issued(identity, status.expiration_timestamp)
