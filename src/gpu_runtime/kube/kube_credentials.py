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

from gpu_runtime.kube.errors import KubeConfigError
from gpu_runtime.kube.meta import KubeStruct

TOKEN_REFRESH_INTERVAL_SECONDS = 60.0
"""Seconds until a token file is read again. The kubelet renews tokens when a fifth of their life, minutes, is left."""
EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True)
class ClientIdentity:
    """What a request carries to say who is calling."""

    authorization: str | None = field(default=None, repr=False)
    certificate: bytes | None = None
    """A client certificate in PEM."""
    key: bytes | None = field(default=None, repr=False)


class KubeCredentials(Protocol):
    async def current(self) -> ClientIdentity:
        """The identity to use now. The same object as long as nothing changed."""
        ...

    def invalidate(self) -> bool:
        """The server did not accept the identity. Whether asking again may give another."""
        ...


class StaticCredentials:
    """An identity that was written into the configuration."""

    def __init__(self, identity: ClientIdentity) -> None:
        self._identity = identity

    async def current(self) -> ClientIdentity:
        return self._identity

    def invalidate(self) -> bool:
        return False


class FileCredentials:
    """An identity in files that others renew: a token, or a certificate and its key. What is inline needs no file."""

    def __init__(
        self,
        token: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        inline: ClientIdentity = ClientIdentity(),  # noqa: B008 - immutable
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token, self._certificate, self._key = token, certificate, key
        self._inline = inline
        self._clock = clock
        self._identity: ClientIdentity | None = None
        self._read_at = 0.0

    async def current(self) -> ClientIdentity:
        now = self._clock()
        if self._identity is None or now - self._read_at >= TOKEN_REFRESH_INTERVAL_SECONDS:
            fresh = self._read()
            self._identity = self._identity if fresh == self._identity else fresh
            self._read_at = now
        assert self._identity is not None  # noqa: S101
        return self._identity

    def invalidate(self) -> bool:
        self._identity = None
        return True

    def _read(self) -> ClientIdentity:
        token = _read_file(self._token)
        return ClientIdentity(
            authorization=bearer_auth_header(token.decode().strip())
            if token is not None
            else self._inline.authorization,
            certificate=self._inline.certificate or _read_file(self._certificate),
            key=self._inline.key or _read_file(self._key),
        )


@dataclass(frozen=True)
class ExecPlugin:
    """A program that hands out credentials, as a kubeconfig names it."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    api_version: str = EXEC_API_VERSIONS[0]
    cluster_info: Mapping[str, Any] | None = None
    """What the program is told about the cluster, if it asked."""
    timeout: float = 60.0


class ExecPluginCredentials:
    """An identity that a program hands out, asked again when it expires or is refused."""

    def __init__(self, plugin: ExecPlugin, now: Callable[[], datetime.datetime] | None = None) -> None:
        self._plugin = plugin
        self._now = now or (lambda: datetime.datetime.now(datetime.UTC))
        self._issued: _IssuedIdentity | None = None
        self._refresh_lock = asyncio.Lock()

    async def current(self) -> ClientIdentity:
        if (issued := self._cached()) is not None:
            return issued.identity
        async with self._refresh_lock:  # many requests wait for one run of the program
            issued = self._cached() or await self._refresh()
        return issued.identity

    def invalidate(self) -> bool:
        self._issued = None
        return True

    def _cached(self) -> "_IssuedIdentity | None":
        issued = self._issued
        if issued is not None and issued.expires_at is not None and issued.expires_at <= self._now():
            return None
        return issued

    async def _refresh(self) -> "_IssuedIdentity":
        answer = await _run_exec_plugin(self._plugin)
        self._issued = _parse_exec_credential(self._plugin, answer)
        return self._issued


def bearer_auth_header(token: str) -> str:
    return f"Bearer {token}"


def basic_auth_header(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def decode_base64(name: str, data: str) -> bytes:
    """The bytes of an inline field of a kubeconfig."""
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise KubeConfigError(f"{name} is not base64: {error}") from error


@dataclass(frozen=True)
class _IssuedIdentity:
    identity: ClientIdentity
    expires_at: datetime.datetime | None


class _ExecStatus(KubeStruct, frozen=True, kw_only=True):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime.datetime | None = None


class _ExecCredential(KubeStruct, frozen=True, kw_only=True):
    api_version: str
    kind: str
    status: _ExecStatus | None = None


def _read_file(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise KubeConfigError(f"credentials cannot be read: {error}") from error


async def _run_exec_plugin(plugin: ExecPlugin) -> bytes:
    asked: dict[str, Any] = {"interactive": False}
    if plugin.cluster_info is not None:
        asked["cluster"] = plugin.cluster_info
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
        raise KubeConfigError(f"the credential plugin {plugin.command} cannot be started: {error}") from error
    return await _exec_plugin_output(process, plugin)


async def _exec_plugin_output(process: asyncio.subprocess.Process, plugin: ExecPlugin) -> bytes:
    try:
        async with asyncio.timeout(plugin.timeout):
            answer, complaint = await process.communicate()
    except TimeoutError as error:
        raise KubeConfigError(f"{plugin.command} gave no credentials within {plugin.timeout:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        words = complaint.decode(errors="replace").strip()[-500:]
        raise KubeConfigError(f"{plugin.command} ended with {process.returncode}: {words}")
    return answer


def _parse_exec_credential(plugin: ExecPlugin, answer: bytes) -> _IssuedIdentity:
    try:
        credential = msgspec.json.decode(answer, type=_ExecCredential)
    except msgspec.DecodeError as error:
        raise KubeConfigError(f"{plugin.command} did not answer with an ExecCredential: {error}") from error
    if credential.api_version != plugin.api_version:
        raise KubeConfigError(f"{plugin.command} speaks {credential.api_version} and not {plugin.api_version}")
    status = credential.status
    if status is None or not (status.token or status.client_certificate_data):
        raise KubeConfigError(f"{plugin.command} gave neither a token nor a certificate")
    identity = ClientIdentity(
        authorization=bearer_auth_header(status.token) if status.token else None,
        certificate=status.client_certificate_data.encode() if status.client_certificate_data else None,
        key=status.client_key_data.encode() if status.client_key_data else None,
    )
    return _IssuedIdentity(identity, status.expiration_timestamp)
