"""Kubeconfigs are read as kubectl reads them, and unsupported or invalid entries are reported."""

import base64
import datetime
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_runtime.kube.config import from_kubeconfig, in_cluster_config, load_cluster_config
from gpu_runtime.kube.errors import KubeConfigError
from gpu_runtime.kube.kube_credentials import (
    ClientIdentity,
    ExecPlugin,
    ExecPluginCredentials,
    FileCredentials,
    StaticCredentials,
)


def kubeconfig(path: Path, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "mine"}},
            {"name": "there", "context": {"cluster": "c2", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://one:6443/", **cluster}},
            {"name": "c2", "cluster": {"server": "https://two:6443"}},
        ],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def identity(path: Path) -> ClientIdentity:
    return await from_kubeconfig([path]).credentials.current()


async def test_current_context_is_used_unless_another_is_given(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config")
    assert from_kubeconfig([path]).server == "https://one:6443"
    assert from_kubeconfig([path], "there").server == "https://two:6443"
    with pytest.raises(KubeConfigError, match="no context 'nowhere'; it has: here, there"):
        from_kubeconfig([path], "nowhere")


async def test_tokens_and_certificates_become_identities(tmp_path: Path) -> None:
    path = tmp_path / "config"
    assert (await identity(kubeconfig(path, {"token": "secret"}))).authorization == "Bearer secret"
    inline = {"client-certificate-data": encoded("cert"), "client-key-data": encoded("key")}
    assert await identity(kubeconfig(path, inline)) == ClientIdentity(certificate=b"cert", key=b"key")
    assert "secret" not in repr(await identity(kubeconfig(path, {"token": "secret"})))


async def test_relative_path_is_resolved_from_the_folder_of_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("cert")
    (tmp_path / "key").write_text("key")
    path = kubeconfig(
        tmp_path / "config", {"client-certificate": "cert", "client-key": "key"}, **{"certificate-authority": "ca"}
    )
    assert await identity(path) == ClientIdentity(certificate=b"cert", key=b"key")
    assert from_kubeconfig([path]).tls.ca_certificate == tmp_path / "ca"


async def test_tls_settings_are_read(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", None, **{"insecure-skip-tls-verify": True, "tls-server-name": "api"})
    tls = from_kubeconfig([path]).tls
    assert (tls.insecure_skip_verify, tls.server_name) == (True, "api")


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"client-certificate-data": "%%%"}, "client-certificate-data is not base64"),
        ({"auth-provider": {"name": "gcp"}}, "auth-provider of user 'u' is not supported: .* use an exec plugin"),
        ({"username": "a", "password": "b"}, "username of user 'u' is not supported: .* removed basic authentication"),
        ({"as": "someone", "as-groups": ["a"]}, "the field as of user 'u' is not supported"),
        (
            {"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}},
            "exec plugin x: apiVersion must be .*, not client.authentication.k8s.io/v1alpha1",
        ),
        (
            {"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Always"}},
            "exec plugin x: interactiveMode Always is not supported",
        ),
        ({"token": 5}, "is not a kubeconfig: user 'u': Expected"),
    ],
)
def test_unsupported_user_setting_is_reported(tmp_path: Path, user: dict[str, Any], message: str) -> None:
    with pytest.raises(KubeConfigError, match=message):
        from_kubeconfig([kubeconfig(tmp_path / "config", user)])


def test_proxy_is_reported_instead_of_ignored(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", None, **{"proxy-url": "http://proxy:1"})
    with pytest.raises(KubeConfigError, match=f"{path}: the field proxy-url of cluster 'c' is not supported"):
        from_kubeconfig([path])
    assert from_kubeconfig([path], "there").server == "https://two:6443", "another cluster of the file can be used"


def test_first_kubeconfig_file_wins_per_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", kubeconfig(tmp_path / "second")
    first.write_text(yaml.safe_dump({"current-context": "there", "clusters": None}))
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'missing'}:{second}")
    assert load_cluster_config().server == "https://two:6443"
    assert load_cluster_config(context="here").server == "https://one:6443"
    assert load_cluster_config(second).server == "https://one:6443", "an explicit path has precedence over $KUBECONFIG"


def test_missing_or_empty_kubeconfig_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KubeConfigError, match="cannot read the kubeconfig"):
        from_kubeconfig([tmp_path / "missing"])
    (tmp_path / "empty").write_text("")
    with pytest.raises(KubeConfigError, match="current-context is not set"):
        from_kubeconfig([tmp_path / "empty"])
    (tmp_path / "list").write_text("- a")
    with pytest.raises(KubeConfigError, match="is not a kubeconfig"):
        from_kubeconfig([tmp_path / "list"])
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(KubeConfigError, match="cannot read the kubeconfig"):
        load_cluster_config()


async def test_in_cluster_config_uses_the_service_account_of_the_pod(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(KubeConfigError, match="no service account token"):
        in_cluster_config(environment, tmp_path)
    (tmp_path / "token").write_text("one\n")
    config = in_cluster_config(environment, tmp_path)
    assert config.server == "https://[fd00::1]:443"
    assert config.tls.ca_certificate == tmp_path / "ca.crt"
    assert (await config.credentials.current()).authorization == "Bearer one"


async def test_token_file_is_reread_after_a_minute_and_after_a_401(tmp_path: Path) -> None:
    now, token = 0.0, tmp_path / "token"
    token.write_text("one")
    credentials = FileCredentials(token=token, clock=lambda: now)
    first = await credentials.current()
    token.write_text("two")
    assert await credentials.current() is first
    now = 60.0
    assert (await credentials.current()).authorization == "Bearer two"
    token.write_text("three")
    assert credentials.invalidate()
    assert (await credentials.current()).authorization == "Bearer three"
    now, third = 120.0, await credentials.current()
    assert await credentials.current() is third, "an unchanged file results in the same identity and connections"
    token.unlink()
    credentials.invalidate()
    with pytest.raises(KubeConfigError, match="cannot read the credentials file"):
        await credentials.current()


async def test_static_credentials_cannot_be_refreshed() -> None:
    assert not StaticCredentials(ClientIdentity()).invalidate()


def write_plugin(folder: Path, body: str) -> str:
    path = folder / "plugin"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


EXEC_PLUGIN = """
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
log = open(sys.argv[1], "a"); log.write(json.dumps(info) + "\\n"); log.close()
runs = len(open(sys.argv[1]).readlines())
status = {"token": f"{os.environ['FLAVOR']}-{runs}", "expirationTimestamp": "2026-11-15T12:00:00Z"}
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


async def test_exec_plugin_credentials_are_cached_until_expiry_or_401(tmp_path: Path) -> None:
    now = datetime.datetime(2026, 11, 15, 11, 59, tzinfo=datetime.UTC)
    log = tmp_path / "log"
    plugin = ExecPlugin(
        write_plugin(tmp_path, EXEC_PLUGIN), (str(log),), {"FLAVOR": "vanilla"}, cluster_info={"server": "https://one"}
    )
    credentials = ExecPluginCredentials(plugin, now=lambda: now)
    assert (await credentials.current()).authorization == "Bearer vanilla-1"
    assert (await credentials.current()).authorization == "Bearer vanilla-1"
    assert '"interactive": false, "cluster": {"server": "https://one"}' in log.read_text()
    credentials.invalidate()
    assert (await credentials.current()).authorization == "Bearer vanilla-2"
    now += datetime.timedelta(minutes=1)
    assert (await credentials.current()).authorization == "Bearer vanilla-3"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit('no login')", "failed with exit code 1: no login"),
        ("print('hello')", "did not print an ExecCredential"),
        ("print(json.dumps({'apiVersion': 'v1', 'kind': 'X'}))", "printed apiVersion v1, not client.authentication"),
        (
            "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'X', 'status': {}}))",
            "neither a token nor a certificate",
        ),
        ("import time; time.sleep(60)", "did not finish within 3 s"),
    ],
)
async def test_failing_exec_plugin_is_reported(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(KubeConfigError, match=message):
        await ExecPluginCredentials(ExecPlugin(write_plugin(tmp_path, body), timeout=3)).current()


async def test_missing_exec_plugin_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match="cannot start exec plugin"):
        await ExecPluginCredentials(ExecPlugin(str(tmp_path / "missing"))).current()


async def test_relative_exec_plugin_command_is_resolved_from_the_kubeconfig(tmp_path: Path) -> None:
    write_plugin(tmp_path, EXEC_PLUGIN)
    spec = {
        "command": "./plugin",
        "apiVersion": "client.authentication.k8s.io/v1",
        "args": [str(tmp_path / "log")],
        "env": [{"name": "FLAVOR", "value": "lemon"}],
        "provideClusterInfo": True,
    }
    path = kubeconfig(tmp_path / "config", {"exec": spec})
    assert (await identity(path)).authorization == "Bearer lemon-1"
    assert '"cluster": {"server": "https://one:6443/"}' in (tmp_path / "log").read_text()
