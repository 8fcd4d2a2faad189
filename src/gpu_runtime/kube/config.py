"""Loads the address, TLS settings and credentials of a cluster, from a kubeconfig or from the service account of a pod.

This module interprets a kubeconfig as kubectl does. It rejects the fields that it does not support.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import Struct

from gpu_runtime.kube.errors import KubeConfigError
from gpu_runtime.kube.kube_credentials import (
    EXEC_API_VERSIONS,
    ClientIdentity,
    ExecPlugin,
    ExecPluginCredentials,
    FileCredentials,
    KubeCredentials,
    StaticCredentials,
    bearer_auth_header,
    decode_base64,
)

_Entry = TypeVar("_Entry", bound=Struct)

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class KubeTLSConfig:
    """How the client verifies the certificate of the API server."""

    ca_certificate: bytes | Path | None = None
    """The CA certificate as PEM, or the path of its file. None: the client trusts the certificate authorities of the
    system."""
    insecure_skip_verify: bool = False
    """Whether to accept every server certificate."""
    server_name: str | None = None
    """The name that the server certificate must have. None: the host of the server address."""


@dataclass(frozen=True)
class ClusterConfig:
    server: str
    credentials: KubeCredentials
    tls: KubeTLSConfig = KubeTLSConfig()


def load_cluster_config(kubeconfig: Path | None = None, context: str | None = None) -> ClusterConfig:
    """Load the cluster configuration from the first available source.

    The sources are, in this order: the given kubeconfig, the files in $KUBECONFIG, the service account of the pod, and
    ~/.kube/config. If a context is given, the service account is not used.
    """
    if kubeconfig is not None:
        return from_kubeconfig([kubeconfig], context)
    if paths := [Path(path) for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]:
        return from_kubeconfig(paths, context)
    if "KUBERNETES_SERVICE_HOST" in os.environ and context is None:
        return in_cluster_config(os.environ)
    return from_kubeconfig([Path.home() / ".kube" / "config"], context)


def in_cluster_config(environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT_DIR) -> ClusterConfig:
    """Return the configuration of the cluster that runs this pod.

    The kubelet replaces the token file before the token expires, so FileCredentials reads the file again and again.
    """
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    token = service_account / "token"
    if not token.exists():
        raise KubeConfigError(f"no service account token at {token}; set automountServiceAccountToken: true in the pod")
    return ClusterConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        credentials=FileCredentials(token=token),
        tls=KubeTLSConfig(ca_certificate=service_account / "ca.crt"),
    )


def from_kubeconfig(paths: Sequence[Path], context: str | None = None) -> ClusterConfig:
    """Return the configuration of the given context. The default is the current context.

    If several files define an entry with the same name, the first file wins.
    """
    files = [_read_kubeconfig(path) for path in paths if len(paths) == 1 or path.exists()]
    name = context or next((file.current_context for _, file in files if file.current_context), "")
    if not name:
        names = ", ".join(map(str, paths))
        raise KubeConfigError(f"current-context is not set in {names}; set it or name a context")
    selected, _ = _find_entry("context", name, files, _Context)
    cluster, cluster_folder = _find_entry("cluster", selected.cluster, files, _Cluster)
    user, user_folder = _User(), cluster_folder
    if selected.user:
        user, user_folder = _find_entry("user", selected.user, files, _User)
    return ClusterConfig(
        server=cluster.server.rstrip("/"),
        credentials=_credentials(user, user_folder, cluster),
        tls=_tls_config(cluster, cluster_folder),
    )


_UNSUPPORTED_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "auth-provider": "Kubernetes 1.26 removed it; use an exec plugin",
        "username": "Kubernetes 1.19 removed basic authentication; use a token, a certificate or an exec plugin",
        "as": "use the credentials of the user or service account itself",
        "proxy-url": "use an address of the API server that this process can reach without a proxy",
    }
)
"""Fields that kubectl supports and this client does not, with the reason or the remedy. The client rejects them:
without them, it would connect to another address or as another user."""


class _KubeconfigStruct(Struct, frozen=True, rename="kebab", kw_only=True):
    """An object in a kubeconfig."""


class _Cluster(_KubeconfigStruct, frozen=True, kw_only=True):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None


class _ExecConfig(Struct, frozen=True, rename="camel", kw_only=True):
    command: str
    api_version: str
    args: tuple[str, ...] | None = None
    env: tuple[dict[str, str], ...] | None = None
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False


class _User(_KubeconfigStruct, frozen=True, kw_only=True):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    exec: _ExecConfig | None = None


class _Context(_KubeconfigStruct, frozen=True, kw_only=True):
    cluster: str
    user: str = ""


class _NamedEntry(_KubeconfigStruct, frozen=True, kw_only=True):
    """An entry of one of the lists. Only the field of its list is set."""

    name: str
    context: dict[str, Any] = msgspec.field(default_factory=dict)
    cluster: dict[str, Any] = msgspec.field(default_factory=dict)
    user: dict[str, Any] = msgspec.field(default_factory=dict)


class _Kubeconfig(_KubeconfigStruct, frozen=True, kw_only=True):
    current_context: str = ""
    contexts: tuple[_NamedEntry, ...] = ()
    clusters: tuple[_NamedEntry, ...] = ()
    users: tuple[_NamedEntry, ...] = ()


def _read_kubeconfig(path: Path) -> tuple[Path, _Kubeconfig]:
    """Return the path of the kubeconfig, and its content."""
    try:
        parsed = yaml.safe_load(path.read_bytes()) or {}
        present = {key: value for key, value in parsed.items() if value is not None}
        return path, msgspec.convert(present, _Kubeconfig)
    except OSError as error:
        raise KubeConfigError(f"cannot read the kubeconfig: {error}") from error
    except (yaml.YAMLError, msgspec.ValidationError, AttributeError) as error:
        raise KubeConfigError(f"{path} is not a kubeconfig: {error}") from error


def _find_entry(
    entry_type: str, name: str, files: Sequence[tuple[Path, _Kubeconfig]], model: type[_Entry]
) -> tuple[_Entry, Path]:
    """Return the entry, and the folder of its kubeconfig. Relative paths in the entry start at this folder."""
    entries = [(entry, path) for path, file in files for entry in getattr(file, f"{entry_type}s")]
    found = next((each for each in entries if each[0].name == name), None)
    if found is None:
        existing = ", ".join(sorted({entry.name for entry, _ in entries})) or "none"
        raise KubeConfigError(f"the kubeconfig has no {entry_type} {name!r}; it has: {existing}")
    fields, path = getattr(found[0], entry_type), found[1]
    for field, remedy in _UNSUPPORTED_FIELDS.items():
        if fields.get(field):
            raise KubeConfigError(f"{path}: the field {field} of {entry_type} {name!r} is not supported: {remedy}")
    try:
        return msgspec.convert(fields, model), path.parent
    except msgspec.ValidationError as error:
        raise KubeConfigError(f"{path} is not a kubeconfig: {entry_type} {name!r}: {error}") from error


def _tls_config(cluster: _Cluster, folder: Path) -> KubeTLSConfig:
    ca_certificate: bytes | Path | None = None
    if cluster.certificate_authority_data:
        ca_certificate = decode_base64("certificate-authority-data", cluster.certificate_authority_data)
    elif cluster.certificate_authority:
        ca_certificate = folder / cluster.certificate_authority
    return KubeTLSConfig(ca_certificate, cluster.insecure_skip_tls_verify, cluster.tls_server_name)


def _credentials(user: _User, folder: Path, cluster: _Cluster) -> KubeCredentials:
    if user.exec is not None:
        return ExecPluginCredentials(_exec_plugin(user.exec, folder, cluster))
    inline = _identity(user)
    if user.token_file or (user.client_certificate and inline.certificate is None):
        return FileCredentials(
            token=folder / user.token_file if user.token_file else None,
            certificate=folder / user.client_certificate if user.client_certificate else None,
            key=folder / user.client_key if user.client_key else None,
            inline=inline,
        )
    return StaticCredentials(inline)


def _identity(user: _User) -> ClientIdentity:
    certificate, key = user.client_certificate_data, user.client_key_data
    return ClientIdentity(
        authorization=bearer_auth_header(user.token) if user.token else None,
        certificate=decode_base64("client-certificate-data", certificate) if certificate else None,
        key=decode_base64("client-key-data", key) if key else None,
    )


def _exec_plugin(config: _ExecConfig, folder: Path, cluster: _Cluster) -> ExecPlugin:
    if config.api_version not in EXEC_API_VERSIONS:
        versions = " or ".join(EXEC_API_VERSIONS)
        raise KubeConfigError(f"exec plugin {config.command}: apiVersion must be {versions}, not {config.api_version}")
    if config.interactive_mode == "Always":
        raise KubeConfigError(
            f"exec plugin {config.command}: interactiveMode Always is not supported; this process has no terminal"
        )
    is_relative_path = os.sep in config.command and not Path(config.command).is_absolute()
    return ExecPlugin(
        command=str(folder / config.command) if is_relative_path else config.command,
        args=config.args or (),
        env={entry["name"]: entry["value"] for entry in config.env or ()},
        api_version=config.api_version,
        cluster_info=_cluster_info(cluster) if config.provide_cluster_info else None,
    )


def _cluster_info(cluster: _Cluster) -> dict[str, Any]:
    info = {
        "server": cluster.server,
        "certificate-authority-data": cluster.certificate_authority_data,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify or None,
        "tls-server-name": cluster.tls_server_name,
    }
    return {key: value for key, value in info.items() if value is not None}
