"""Where the API server is and who is calling: from a kubeconfig as kubectl reads it, or from inside a pod."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import Struct

from gpu_runtime.kube.errors import Misconfigured
from gpu_runtime.kube.kube_credentials import (
    EXEC_VERSIONS,
    Credentials,
    Fixed,
    FromFiles,
    FromPlugin,
    Identity,
    Plugin,
    basic,
    bearer,
    decoded,
)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Trust:
    """Which server is believed to be the API server."""

    authority: bytes | Path | None = None
    """The certificate authority in PEM, or the file to read it from. Without one, the system's are trusted."""
    insecure: bool = False
    server_name: str | None = None
    """The name that the server's certificate must carry, where it is not the one in its address."""


@dataclass(frozen=True)
class ClusterConfig:
    server: str
    credentials: Credentials
    trust: Trust = Trust()
    namespace: str = "default"
    proxy: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Sent with every request: whom to impersonate."""


def load_config(kubeconfig: Path | None = None, context: str | None = None) -> ClusterConfig:
    """The cluster to talk to: the given kubeconfig, the ones of $KUBECONFIG, the pod's own, or ~/.kube/config."""
    if kubeconfig is not None:
        return from_kubeconfig([kubeconfig], context)
    if listed := [Path(path) for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]:
        return from_kubeconfig(listed, context)
    if "KUBERNETES_SERVICE_HOST" in os.environ and context is None:
        return in_cluster(os.environ)
    return from_kubeconfig([Path.home() / ".kube" / "config"], context)


def in_cluster(environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> ClusterConfig:
    """The cluster that runs this pod. Its token is renewed in place, so the file is read again and again."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    token, namespace = service_account / "token", service_account / "namespace"
    if not token.exists():
        raise Misconfigured(f"this pod has no service account token at {token}")
    return ClusterConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        credentials=FromFiles(token=token),
        trust=Trust(authority=service_account / "ca.crt"),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def from_kubeconfig(paths: Sequence[Path], context: str | None = None) -> ClusterConfig:
    """The context of a kubeconfig. Of several files, the first that names a thing defines it."""
    files = [_read(path) for path in paths if len(paths) == 1 or path.exists()]
    name = context or next((file.current_context for _, file in files if file.current_context), "")
    if not name:
        raise Misconfigured(f"no context is current in {_listed(paths)}")
    chosen, _ = _named("context", name, [(entry, folder) for folder, file in files for entry in file.contexts])
    cluster, home = _named(
        "cluster", chosen.context.cluster, [(entry, folder) for folder, file in files for entry in file.clusters]
    )
    user, user_home = _User(), home
    if chosen.context.user:
        entry, user_home = _named(
            "user", chosen.context.user, [(entry, folder) for folder, file in files for entry in file.users]
        )
        user = entry.user
    return _config(chosen.context, cluster.cluster, home, user, user_home)


class _Kebab(Struct, frozen=True, rename="kebab", kw_only=True):
    """A value in a kubeconfig."""


class _Cluster(_Kebab, frozen=True, kw_only=True):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _Exec(Struct, frozen=True, rename="camel", kw_only=True):
    command: str
    api_version: str
    args: tuple[str, ...] | None = None
    env: tuple[dict[str, str], ...] | None = None
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False


class _User(_Kebab, frozen=True, kw_only=True):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    impersonate: str | None = msgspec.field(default=None, name="as")
    impersonate_groups: tuple[str, ...] = msgspec.field(default=(), name="as-groups")
    exec: _Exec | None = None
    auth_provider: dict[str, Any] | None = None


class _Context(_Kebab, frozen=True, kw_only=True):
    cluster: str
    user: str = ""
    namespace: str = "default"


class _NamedCluster(_Kebab, frozen=True, kw_only=True):
    name: str
    cluster: _Cluster


class _NamedUser(_Kebab, frozen=True, kw_only=True):
    name: str
    user: _User = _User()


class _NamedContext(_Kebab, frozen=True, kw_only=True):
    name: str
    context: _Context


class _Kubeconfig(_Kebab, frozen=True, kw_only=True):
    current_context: str = ""
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()


_Entry = TypeVar("_Entry", _NamedCluster, _NamedUser, _NamedContext)


def _read(path: Path) -> tuple[Path, _Kubeconfig]:
    """A kubeconfig, and the folder that its relative paths start from."""
    try:
        parsed = yaml.safe_load(path.read_bytes()) or {}
        present = {key: value for key, value in parsed.items() if value is not None}
        return path.parent, msgspec.convert(present, _Kubeconfig)
    except OSError as error:
        raise Misconfigured(f"the kubeconfig cannot be read: {error}") from error
    except (yaml.YAMLError, msgspec.ValidationError, AttributeError) as error:
        raise Misconfigured(f"{path} is not a kubeconfig: {error}") from error


def _named(what: str, name: str, entries: Sequence[tuple[_Entry, Path]]) -> tuple[_Entry, Path]:
    for entry, folder in entries:
        if entry.name == name:
            return entry, folder
    known = ", ".join(sorted({entry.name for entry, _ in entries})) or "none"
    raise Misconfigured(f"the kubeconfig has no {what} {name!r}; it has: {known}")


def _config(context: _Context, cluster: _Cluster, home: Path, user: _User, user_home: Path) -> ClusterConfig:
    return ClusterConfig(
        server=cluster.server.rstrip("/"),
        credentials=_credentials(user, user_home, cluster),
        trust=_trust(cluster, home),
        namespace=context.namespace,
        proxy=cluster.proxy_url,
        headers=_impersonation(user),
    )


def _trust(cluster: _Cluster, home: Path) -> Trust:
    authority: bytes | Path | None = None
    if cluster.certificate_authority_data:
        authority = decoded("certificate-authority-data", cluster.certificate_authority_data)
    elif cluster.certificate_authority:
        authority = home / cluster.certificate_authority
    return Trust(authority, cluster.insecure_skip_tls_verify, cluster.tls_server_name)


def _credentials(user: _User, home: Path, cluster: _Cluster) -> Credentials:
    if user.auth_provider is not None:
        raise Misconfigured("auth-provider was removed from Kubernetes in 1.26: use an exec plugin")
    if user.exec is not None:
        return FromPlugin(_plugin(user.exec, home, cluster))
    inline = _identity(user)
    if user.token_file or (user.client_certificate and inline.certificate is None):
        return FromFiles(
            token=home / user.token_file if user.token_file else None,
            certificate=home / user.client_certificate if user.client_certificate else None,
            key=home / user.client_key if user.client_key else None,
            inline=inline,
        )
    return Fixed(inline)


def _identity(user: _User) -> Identity:
    authorization = None
    if user.token:
        authorization = bearer(user.token)
    elif user.username is not None:
        authorization = basic(user.username, user.password or "")
    certificate, key = user.client_certificate_data, user.client_key_data
    return Identity(
        authorization=authorization,
        certificate=decoded("client-certificate-data", certificate) if certificate else None,
        key=decoded("client-key-data", key) if key else None,
    )


def _plugin(program: _Exec, home: Path, cluster: _Cluster) -> Plugin:
    if program.api_version not in EXEC_VERSIONS:
        raise Misconfigured(f"credential plugins must speak {EXEC_VERSIONS[0]}, not {program.api_version}")
    if program.interactive_mode == "Always":
        raise Misconfigured(f"{program.command} wants to talk to a person, and this process has none")
    separated = os.sep in program.command and not Path(program.command).is_absolute()
    return Plugin(
        command=str(home / program.command) if separated else program.command,
        args=program.args or (),
        env={entry["name"]: entry["value"] for entry in program.env or ()},
        api_version=program.api_version,
        cluster=_cluster_info(cluster) if program.provide_cluster_info else None,
    )


def _cluster_info(cluster: _Cluster) -> dict[str, Any]:
    info = {
        "server": cluster.server,
        "certificate-authority-data": cluster.certificate_authority_data,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify or None,
        "tls-server-name": cluster.tls_server_name,
        "proxy-url": cluster.proxy_url,
    }
    return {key: value for key, value in info.items() if value is not None}


def _impersonation(user: _User) -> tuple[tuple[str, str], ...]:
    if user.impersonate is None:
        return ()
    groups = (("Impersonate-Group", group) for group in user.impersonate_groups)
    return (("Impersonate-User", user.impersonate), *groups)


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
