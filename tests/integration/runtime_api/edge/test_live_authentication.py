"""Authentication with service account tokens that a real API server reviews, and with tokens of a file."""

import asyncio
import time
from pathlib import Path

import pytest
import yaml
from lightkube import Client as LightkubeClient
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ServiceAccount, ServiceAccountToken

from gpu_runtime.contract.errors import Unauthenticated
from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.service_account_verifier import ServiceAccountVerifier
from gpu_runtime.runtime_api.http.route import Caller, Scope
from gpu_runtime.runtime_api.http.token_review import REVIEW_CACHE_TTL_SECONDS, TokenReviewer
from localcluster.control_plane import ControlPlane
from localcluster.supervisor_client import wait_until
from tests.integration.runtime_api.edge.conftest import RUNTIME_API_USER, ApiCluster

TRUSTED = [{"namespace": "default", "name": "shop", "scopes": ["runtime"]}]
FILE_TOKEN, NEXT_TOKEN, UNKNOWN_TOKEN = "the-first-token-of-the-file", "the-next-token-of-the-file", "an-unknown-token"


def account(kube: LightkubeClient, name: str) -> None:
    kube.apply(ServiceAccount(metadata=ObjectMeta(name=name, namespace="default")), field_manager="test", force=True)


def token(kube: LightkubeClient, name: str, *audiences: str) -> str:
    account(kube, name)
    spec = TokenRequestSpec(audiences=list(audiences), expirationSeconds=600)
    response = kube.create(ServiceAccountToken(metadata=ObjectMeta(), spec=spec), name, namespace="default")
    assert response.status
    assert response.status.token
    return response.status.token


def test_service_account_tokens_identify_the_caller(cluster: ApiCluster) -> None:
    settings = {"mode": "required", "serviceAccounts": TRUSTED}
    replica = cluster.start_replica(authentication=settings).wait_ready()
    with cluster.control_plane.client() as kube:
        valid, wrong_audience = token(kube, "shop", "gpu-runtime"), token(kube, "shop", "elsewhere")
        default_audience, other_account = token(kube, "shop"), token(kube, "other", "gpu-runtime")
    assert replica.request("/test/slow?seconds=0", token=valid).json == {"data": "serviceaccount:default/shop"}
    forged = valid[:-6] + ("AAAAAA" if not valid.endswith("AAAAAA") else "BBBBBB")
    for rejected in (wrong_audience, default_audience, forged, "", "not-a-json-web-token"):
        reply = replica.request("/test/slow?seconds=0", token=rejected)
        assert (reply.status, reply.json["error"]["code"]) == (401, "unauthenticated")
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")
    forbidden = replica.request("/test/operator", token=valid)
    assert (forbidden.status, "lacks the scope operator" in forbidden.json["error"]["message"]) == (403, True)
    assert replica.request("/test/slow?seconds=0", token=other_account).status == 403
    assert replica.request("/api/v1/health").status == 200


async def test_token_of_a_deleted_account_is_rejected_after_the_cache_ttl(
    api_control_plane: ControlPlane,
) -> None:
    elapsed = 0.0
    config = load_cluster_config(api_control_plane.kubeconfig_for("runtime-api", RUNTIME_API_USER))
    async with open_kube_client(config, field_manager="test") as client:
        scopes = {ObjectKey("default", "deleted"): frozenset({Scope.RUNTIME})}
        verifier = ServiceAccountVerifier(client, ["gpu-runtime"], lambda: time.time() + elapsed)
        reviewer = TokenReviewer(client, verifier, scopes)
        with api_control_plane.client() as kube:
            account_token = token(kube, "deleted", "gpu-runtime")
            caller = Caller("serviceaccount:default/deleted", frozenset({Scope.RUNTIME}))
            assert await reviewer.find_caller(account_token) == caller
            kube.delete(ServiceAccount, "deleted", namespace="default")
        assert await reviewer.find_caller(account_token) == caller

        async def find_caller_until_rejected() -> None:
            nonlocal elapsed
            async with asyncio.timeout(60):  # the API server caches reviews for ten seconds
                while await reviewer.find_caller(account_token) == caller:
                    elapsed += REVIEW_CACHE_TTL_SECONDS / 30  # the token itself is valid for 600 s
                    await asyncio.sleep(0.2)

        with pytest.raises(Unauthenticated, match="its service account or its pod was deleted"):
            await find_caller_until_rejected()


def test_unreachable_kubernetes_is_503_and_not_401(cluster: ApiCluster, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(
        yaml.safe_dump({"tokens": [{"name": "ops", "token": FILE_TOKEN, "scopes": ["runtime", "operator"]}]})
    )
    settings = {"mode": "required", "serviceAccounts": TRUSTED, "tokenFile": str(tokens)}
    replica = cluster.start_replica(authentication=settings).wait_ready()
    with cluster.control_plane.client() as kube:
        account_token = token(kube, "shop", "gpu-runtime")
    cluster.control_plane.processes.stop("kube-apiserver")
    reply = replica.request("/test/slow?seconds=0", token=account_token)
    assert (reply.status, "cannot review the bearer token" in reply.json["error"]["message"]) == (503, True)
    assert replica.request("/test/slow?seconds=0", token=UNKNOWN_TOKEN).status == 401
    assert replica.request("/test/slow?seconds=0", token=FILE_TOKEN).json == {"data": "token:ops"}


def test_changed_token_file_is_reloaded_at_runtime(cluster: ApiCluster, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"

    def write(token: str) -> None:
        new_file = tmp_path / "new"
        new_file.write_text(yaml.safe_dump({"tokens": [{"name": "ops", "token": token, "scopes": ["runtime"]}]}))
        new_file.rename(tokens)

    write(FILE_TOKEN)
    replica = cluster.start_replica(authentication={"mode": "required", "tokenFile": str(tokens)}).wait_ready()
    assert replica.request("/test/units", token=FILE_TOKEN).status == 200
    write(NEXT_TOKEN)
    replica.wait_for("/test/units", 200, token=NEXT_TOKEN)
    assert replica.request("/test/units", token=FILE_TOKEN).status == 401
    tokens.write_text("tokens: nonsense")
    wait_until(lambda: "the previous tokens stay valid" in replica.log.read_text(), 60, lambda: "no error is logged")
    assert replica.request("/test/units", token=NEXT_TOKEN).status == 200


@pytest.mark.parametrize(
    ("authentication", "message"),
    [
        ({"mode": "required"}, "no caller is configured; set tokenFile or serviceAccounts"),
        ({"mode": "required", "tokenFile": "/nowhere/tokens.yaml"}, "/nowhere/tokens.yaml: No such file or directory"),
    ],
)
def test_authentication_without_any_caller_ends_the_process(
    cluster: ApiCluster, authentication: dict[str, str], message: str
) -> None:
    replica = cluster.start_replica(authentication=authentication)
    assert replica.wait_exit() == 1
    assert message in replica.log_lines[-1]["error"]
    assert "stacktrace" not in replica.log_lines[-1]
