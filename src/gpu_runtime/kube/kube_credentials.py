"""Credentials for the API server: certificates, tokens, token files, exec plugins.

Some credentials change while the process runs. The client reads files again every minute. It runs an exec plugin again
when the credentials of the plugin have expired. It does both also after the server has rejected the credentials with
401.
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
"""How long the content of a token file is cached. The kubelet replaces a token when a fifth of its lifetime remains,
which is longer than this interval."""
EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True)
class ClientIdentity:
    """The Authorization header and the client certificate that identify the caller of a request."""

    authorization: str | None = field(default=None, repr=False)
    certificate: bytes | None = None
    """The client certificate as PEM."""
    key: bytes | None = field(default=None, repr=False)


class KubeCredentials(Protocol):
    async def current(self) -> ClientIdentity:
        """Return the identity to use now. While the identity does not change, return the same object."""
        ...

    def invalidate(self) -> bool:
        """Drop the identity after the server rejected it. Return whether `current` can return a new identity."""
        ...


class StaticCredentials:
    """An identity that the kubeconfig contains. It never changes."""

    def __init__(self, identity: ClientIdentity) -> None:
        self._identity = identity

    async def current(self) -> ClientIdentity:
        return self._identity

    def invalidate(self) -> bool:
        return False


class FileCredentials:
    """An identity in files that another program replaces: a token, or a certificate and its key.

    `inline` has the values that the kubeconfig itself contains.
    """

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
            current = self._read()
            self._identity = self._identity if current == self._identity else current
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
    """A program that the kubeconfig names and that prints credentials."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    api_version: str = EXEC_API_VERSIONS[0]
    cluster_info: Mapping[str, Any] | None = None
    """The cluster data that the client passes to the program. None: `provideClusterInfo` is not set."""
    timeout: float = 60.0
    """Seconds after which the program is killed."""


class ExecPluginCredentials:
    """An identity from an exec plugin. The plugin runs again when the identity expires or the server rejects it."""

    def __init__(self, plugin: ExecPlugin, now: Callable[[], datetime.datetime] | None = None) -> None:
        self._plugin = plugin
        self._now = now or (lambda: datetime.datetime.now(datetime.UTC))
        self._issued: _IssuedIdentity | None = None
        self._refresh_lock = asyncio.Lock()

    async def current(self) -> ClientIdentity:
        if (issued := self._cached()) is not None:
            return issued.identity
        async with self._refresh_lock:  # concurrent requests wait for one run of the plugin
            issued = self._cached()
            if issued is None:
                output = await _run_exec_plugin(self._plugin)
                issued = self._issued = _parse_exec_credential(self._plugin, output)
        return issued.identity

    def invalidate(self) -> bool:
        self._issued = None
        return True

    def _cached(self) -> "_IssuedIdentity | None":
        issued = self._issued
        if issued is not None and issued.expires_at is not None and issued.expires_at <= self._now():
            return None
        return issued


def bearer_auth_header(token: str) -> str:
    return f"Bearer {token}"


def decode_base64(name: str, data: str) -> bytes:
    """Decode an inline field of a kubeconfig. `name` is the name of the field, for the error message."""
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
        raise KubeConfigError(f"cannot read the credentials file: {error}") from error


async def _run_exec_plugin(plugin: ExecPlugin) -> bytes:
    spec: dict[str, Any] = {"interactive": False}
    if plugin.cluster_info is not None:
        spec["cluster"] = plugin.cluster_info
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
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
        raise KubeConfigError(f"cannot start exec plugin {plugin.command}: {error}") from error
    return await _exec_plugin_output(process, plugin)


async def _exec_plugin_output(process: asyncio.subprocess.Process, plugin: ExecPlugin) -> bytes:
    try:
        async with asyncio.timeout(plugin.timeout):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise KubeConfigError(f"exec plugin {plugin.command} did not finish within {plugin.timeout:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        message = errors.decode(errors="replace").strip()[-500:]
        raise KubeConfigError(f"exec plugin {plugin.command} failed with exit code {process.returncode}: {message}")
    return output


def _parse_exec_credential(plugin: ExecPlugin, output: bytes) -> _IssuedIdentity:
    name = f"exec plugin {plugin.command}"
    try:
        credential = msgspec.json.decode(output, type=_ExecCredential)
    except msgspec.DecodeError as error:
        raise KubeConfigError(f"{name} did not print an ExecCredential: {error}") from error
    if credential.api_version != plugin.api_version:
        raise KubeConfigError(f"{name} printed apiVersion {credential.api_version}, not {plugin.api_version}")
    status = credential.status
    if status is None or not (status.token or status.client_certificate_data):
        raise KubeConfigError(f"{name} printed neither a token nor a certificate")

    identity = ClientIdentity(
        authorization=bearer_auth_header(status.token) if status.token else None,
        certificate=status.client_certificate_data.encode() if status.client_certificate_data else None,
        key=status.client_key_data.encode() if status.client_key_data else None,
    )
    return _IssuedIdentity(identity, status.expiration_timestamp)
