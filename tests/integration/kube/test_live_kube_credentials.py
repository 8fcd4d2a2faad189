"""Credentials that change while the process runs, with real ServiceAccount tokens."""

import asyncio
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import Client as LightkubeClient
from lightkube.models.authentication_v1 import BoundObjectReference, TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Secret, ServiceAccount, ServiceAccountToken

from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import (
    ClusterConfig,
    KubeTLSConfig,
    from_kubeconfig,
    in_cluster_config,
    load_cluster_config,
)
from gpu_runtime.kube.errors import KubeConfigError, KubeForbidden, KubeUnauthorized, KubeUnreachable
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.kube_credentials import ClientIdentity, StaticCredentials
from gpu_runtime.kube.metrics import KubeMetrics
from localcluster.control_plane import ControlPlane
from localcluster.pki import CertificateAuthority
from tests.integration.kube.polling import eventually
from tests.kube_kinds import NODES


def service_account_token(kube: LightkubeClient, namespace: str, account: str, bound_to: str) -> str:
    """Return a ServiceAccount token that is bound to a Secret and becomes invalid when the Secret is deleted."""
    kube.create(Secret(metadata=ObjectMeta(name=bound_to, namespace=namespace)))
    secret = kube.get(Secret, bound_to, namespace=namespace)
    assert secret.metadata
    reference = BoundObjectReference(apiVersion="v1", kind="Secret", name=bound_to, uid=secret.metadata.uid)
    spec = TokenRequestSpec(audiences=[], boundObjectRef=reference, expirationSeconds=600)
    response = kube.create(ServiceAccountToken(metadata=ObjectMeta(), spec=spec), account, namespace=namespace)
    assert response.status
    assert response.status.token
    return response.status.token


def write_kubeconfig(path: Path, plane: ControlPlane, user: dict[str, Any], **cluster: Any) -> Path:
    values = {"server": plane.url, "certificate-authority": str(plane.authority.certificate), **cluster}
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {key: value for key, value in values.items() if value is not None}}],
        "users": [{"name": "x", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def pod_config(folder: Path, plane: ControlPlane) -> ClusterConfig:
    """Return the configuration of a pod whose service account is mounted in this folder."""
    (folder / "ca.crt").write_bytes(plane.authority.certificate.read_bytes())
    environment = {"KUBERNETES_SERVICE_HOST": plane.address, "KUBERNETES_SERVICE_PORT": str(plane.port)}
    return in_cluster_config(environment, folder)


def response_count(metrics: KubeMetrics, plane: ControlPlane, code: int) -> float:
    labels = {"method": "GET", "code": str(code), "host": f"{plane.address}:{plane.port}"}
    return metrics.registry.get_sample_value("rest_client_requests_total", labels) or 0


async def wait_rejected(client: KubeClient, metrics: KubeMetrics, plane: ControlPlane) -> None:
    """Send requests until the server has rejected one. It caches a token for ten seconds after it became invalid."""
    while not response_count(metrics, plane, 401):
        await client.server_version()


async def test_rotated_token_is_used_without_a_failed_request(
    control_plane: ControlPlane, kube: LightkubeClient, namespace: str, tmp_path: Path
) -> None:
    kube.create(ServiceAccount(metadata=ObjectMeta(name="worker", namespace=namespace)))
    (tmp_path / "token").write_text(service_account_token(kube, namespace, "worker", "first"))
    metrics = KubeMetrics()
    async with open_kube_client(pod_config(tmp_path, control_plane), field_manager="test", metrics=metrics) as client:
        assert (await client.server_version()).startswith("v1.")
        with pytest.raises(KubeForbidden, match=f"system:serviceaccount:{namespace}:worker"):
            await client.list(NODES)
        (tmp_path / "token").write_text(service_account_token(kube, namespace, "worker", "second"))
        kube.delete(Secret, "first", namespace=namespace)
        await wait_rejected(client, metrics, control_plane)
        await client.server_version()
    assert response_count(metrics, control_plane, 401) == 1, "after the 401 the client reads the new token"


async def test_exec_plugin_is_called_again_after_a_401(
    control_plane: ControlPlane, kube: LightkubeClient, namespace: str, tmp_path: Path
) -> None:
    kube.create(ServiceAccount(metadata=ObjectMeta(name="worker", namespace=namespace)))
    tokens = [
        f"{service_account_token(kube, namespace, 'worker', 'only')}x",
        service_account_token(kube, namespace, "worker", "good"),
    ]
    program = tmp_path / "plugin"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        "tokens = pathlib.Path(sys.argv[1])\n"
        "first, *rest = json.loads(tokens.read_text())\n"
        "tokens.write_text(json.dumps(rest))\n"
        "version = 'client.authentication.k8s.io/v1'\n"
        "print(json.dumps({'apiVersion': version, 'kind': 'ExecCredential', 'status': {'token': first}}))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "tokens").write_text(json.dumps(tokens))
    spec = {
        "command": str(program),
        "args": [str(tmp_path / "tokens")],
        "apiVersion": "client.authentication.k8s.io/v1",
    }
    config = from_kubeconfig([write_kubeconfig(tmp_path / "config", control_plane, {"exec": spec})])
    metrics = KubeMetrics()
    async with open_kube_client(config, field_manager="test", metrics=metrics) as client:
        await client.server_version()
        await client.server_version()
    assert [response_count(metrics, control_plane, code) for code in (401, 200)] == [1, 2]
    assert json.loads((tmp_path / "tokens").read_text()) == [], "the plugin ran twice, not three times"


async def test_exec_plugin_is_called_again_when_its_token_expires(
    control_plane: ControlPlane, kube: LightkubeClient, namespace: str, tmp_path: Path
) -> None:
    kube.create(ServiceAccount(metadata=ObjectMeta(name="worker", namespace=namespace)))
    token = service_account_token(kube, namespace, "worker", "only")
    program = tmp_path / "plugin"
    program.write_text(
        f"#!{sys.executable}\n"
        "import datetime, json, pathlib, sys\n"
        "with pathlib.Path(sys.argv[2]).open('a') as runs: runs.write('run\\n')\n"
        "expiry = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)).isoformat()\n"
        "status = {'token': sys.argv[1], 'expirationTimestamp': expiry}\n"
        "version = 'client.authentication.k8s.io/v1'\n"
        "print(json.dumps({'apiVersion': version, 'kind': 'ExecCredential', 'status': status}))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    runs = tmp_path / "runs"
    spec = {"command": "./plugin", "args": [token, str(runs)], "apiVersion": "client.authentication.k8s.io/v1"}
    config = from_kubeconfig([write_kubeconfig(tmp_path / "config", control_plane, {"exec": spec})])
    metrics = KubeMetrics()
    async with asyncio.timeout(60), open_kube_client(config, field_manager="test", metrics=metrics) as client:
        while not runs.exists() or runs.read_text().count("run") < 2:
            await client.server_version()
    assert response_count(metrics, control_plane, 401) == 0, "the client does not wait for a rejection"
    requests = response_count(metrics, control_plane, 200)
    assert requests > 2, "the token is used until it expires"


async def test_failing_exec_plugin_is_named_in_the_readiness_of_an_informer(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    spec = {
        "command": "sh",
        "args": ["-c", "echo 'the login has expired' >&2; exit 3"],
        "apiVersion": "client.authentication.k8s.io/v1",
    }
    config = from_kubeconfig([write_kubeconfig(tmp_path / "config", control_plane, {"exec": spec})])
    async with open_kube_client(config, field_manager="test") as client:
        with pytest.raises(KubeConfigError, match="exec plugin sh failed with exit code 3: the login has expired"):
            await client.server_version()
        informer = Informer(client, NODES)
        running = asyncio.create_task(informer.run())
        await eventually(lambda: bool(informer.last_error), "the informer reports the failure")
        assert not running.done(), "the informer tries again"
        assert "exec plugin sh failed with exit code 3: the login has expired" in informer.last_error
        running.cancel()


async def test_exec_plugin_may_return_certificates(control_plane: ControlPlane, tmp_path: Path) -> None:
    issued = control_plane.authority.issue("plugged", "plugged", ["system:masters"])
    status = {
        "clientCertificateData": issued.certificate.read_text(),
        "clientKeyData": issued.key.read_text(),
        "expirationTimestamp": "2100-01-01T00:00:00Z",
    }
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    (tmp_path / "credential").write_text(json.dumps(credential))
    spec = {"command": "cat", "args": [str(tmp_path / "credential")], "apiVersion": "client.authentication.k8s.io/v1"}
    config = from_kubeconfig([write_kubeconfig(tmp_path / "config", control_plane, {"exec": spec})])
    async with open_kube_client(config, field_manager="test") as client:
        assert (await client.list(NODES)).items


async def test_client_certificates_are_read_from_files(control_plane: ControlPlane, tmp_path: Path) -> None:
    admin = control_plane.authority.issue("admin", "admin", ["system:masters"])
    user = {"client-certificate": str(admin.certificate), "client-key": str(admin.key)}
    path = write_kubeconfig(tmp_path / "config", control_plane, user, **{"tls-server-name": "kubernetes.default"})
    async with open_kube_client(load_cluster_config(path), field_manager="test") as client:
        assert (await client.list(NODES)).items


async def test_server_certificate_is_verified(control_plane: ControlPlane, tmp_path: Path) -> None:
    wrong_ca = KubeTLSConfig(ca_certificate=_other_ca(tmp_path))
    for tls in (wrong_ca, KubeTLSConfig(control_plane.authority.certificate, server_name="elsewhere.example")):
        config = ClusterConfig(control_plane.url, StaticCredentials(ClientIdentity("Bearer x")), tls)
        async with open_kube_client(config, field_manager="test") as client:
            with pytest.raises(KubeUnreachable, match=r"(?i)certificate") as failure:
                await client.server_version()
        assert not failure.value.sent
    insecure = ClusterConfig(
        control_plane.url, StaticCredentials(ClientIdentity("Bearer x")), KubeTLSConfig(insecure_skip_verify=True)
    )
    async with open_kube_client(insecure, field_manager="test") as client:
        with pytest.raises(KubeUnauthorized):
            await client.server_version()


async def test_rotated_ca_file_is_reloaded(
    control_plane: ControlPlane, kube: LightkubeClient, namespace: str, tmp_path: Path
) -> None:
    kube.create(ServiceAccount(metadata=ObjectMeta(name="worker", namespace=namespace)))
    (tmp_path / "token").write_text(service_account_token(kube, namespace, "worker", "first"))
    config = pod_config(tmp_path, control_plane)
    ca_certificate = (tmp_path / "ca.crt").read_bytes()
    (tmp_path / "ca.crt").write_bytes(_other_ca(tmp_path))
    async with open_kube_client(config, field_manager="test") as client:
        with pytest.raises(KubeUnreachable, match=r"(?i)certificate"):
            await client.server_version()
        (tmp_path / "ca.crt").write_bytes(ca_certificate)
        assert (await client.server_version()).startswith("v1.")


def _other_ca(folder: Path) -> bytes:
    return CertificateAuthority(folder / "other").certificate.read_bytes()
