"""Real tokens of real service accounts, reviewed by a real API server, and tokens from a file."""

import asyncio
from pathlib import Path

import pytest
import yaml
from lightkube import Client as OtherEyes
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ServiceAccount, ServiceAccountToken

from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.http.caller import Caller
from gpu_runtime.runtime_api.http.route import Scope
from gpu_runtime.runtime_api.http.token_review import TokenReviewer
from localcluster.control_plane import ControlPlane
from localcluster.supervisor_client import wait_until
from tests.integration.runtime_api.edge.conftest import RUNTIME_API_USER, ApiCluster

TRUSTED = [{"namespace": "default", "name": "shop", "scopes": ["runtime"]}]
FILE_TOKEN, NEXT_TOKEN, UNKNOWN_TOKEN = "a-token-of-the-file", "the-next-token-of-the-file", "a-token-of-nobody"


def account(kube: OtherEyes, name: str) -> None:
    kube.apply(ServiceAccount(metadata=ObjectMeta(name=name, namespace="default")), field_manager="test", force=True)


def token(kube: OtherEyes, name: str, *audiences: str) -> str:
    account(kube, name)
    spec = TokenRequestSpec(audiences=list(audiences), expirationSeconds=600)
    answer = kube.create(ServiceAccountToken(metadata=ObjectMeta(), spec=spec), name, namespace="default")
    assert answer.status
    assert answer.status.token
    return answer.status.token


def test_service_account_tokens_identify_the_caller(cluster: ApiCluster) -> None:
    settings = {"mode": "required", "serviceAccounts": TRUSTED}
    replica = cluster.start_replica(authentication=settings).wait_ready()
    with cluster.control_plane.client() as kube:
        right, wrong = token(kube, "shop", "gpu-runtime"), token(kube, "shop", "elsewhere")
        api_server, stranger = token(kube, "shop"), token(kube, "stranger", "gpu-runtime")
    assert replica.request("/test/slow?seconds=0", token=right).json == {"data": "serviceaccount:default/shop"}
    forged = right[:-6] + ("AAAAAA" if not right.endswith("AAAAAA") else "BBBBBB")
    for refused in (wrong, api_server, forged, "", "no-token-at-all"):
        reply = replica.request("/test/slow?seconds=0", token=refused)
        assert (reply.status, reply.json["error"]["code"]) == (401, "unauthenticated")
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")
    lacking = replica.request("/test/operator", token=right)
    assert (lacking.status, "lacks the scope operator" in lacking.json["error"]["message"]) == (403, True)
    assert replica.request("/test/slow?seconds=0", token=stranger).status == 403
    assert replica.request("/api/v1/health").status == 200


async def test_token_of_a_deleted_account_is_rejected_after_the_cache_ttl(
    api_control_plane: ControlPlane,
) -> None:
    time = 0.0
    config = load_cluster_config(api_control_plane.kubeconfig_for("runtime-api", RUNTIME_API_USER))
    async with open_kube_client(config, field_manager="test") as client:
        scopes = {ObjectKey("default", "leaving"): frozenset({Scope.RUNTIME})}
        reviewer = TokenReviewer(client, ["gpu-runtime"], scopes, lambda: time)
        with api_control_plane.client() as kube:
            theirs = token(kube, "leaving", "gpu-runtime")
            known = Caller("serviceaccount:default/leaving", frozenset({Scope.RUNTIME}))
            assert await reviewer.find_caller(theirs) == known
            kube.delete(ServiceAccount, "leaving", namespace="default")
        assert await reviewer.find_caller(theirs) == known
        async with asyncio.timeout(60):  # the API server has a memory of its own, of ten seconds
            while await reviewer.find_caller(theirs) is not None:
                time += 61.0
                await asyncio.sleep(0.2)


def test_unreachable_kubernetes_is_503_and_not_401(cluster: ApiCluster, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(
        yaml.safe_dump({"tokens": [{"name": "ops", "token": FILE_TOKEN, "scopes": ["runtime", "operator"]}]})
    )
    settings = {"mode": "required", "serviceAccounts": TRUSTED, "tokenFile": str(tokens)}
    replica = cluster.start_replica(authentication=settings).wait_ready()
    with cluster.control_plane.client() as kube:
        theirs = token(kube, "shop", "gpu-runtime")
    cluster.control_plane.processes.stop("kube-apiserver")
    reply = replica.request("/test/slow?seconds=0", token=theirs)
    assert (reply.status, "whose token" in reply.json["error"]["message"]) == (503, True)
    assert replica.request("/test/slow?seconds=0", token=UNKNOWN_TOKEN).status == 401
    assert replica.request("/test/slow?seconds=0", token=FILE_TOKEN).json == {"data": "token:ops"}


def test_changed_token_file_is_reloaded_at_runtime(cluster: ApiCluster, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"

    def write(token: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(yaml.safe_dump({"tokens": [{"name": "ops", "token": token, "scopes": ["runtime"]}]}))
        fresh.rename(tokens)

    write(FILE_TOKEN)
    replica = cluster.start_replica(authentication={"mode": "required", "tokenFile": str(tokens)}).wait_ready()
    assert replica.request("/test/units", token=FILE_TOKEN).status == 200
    write(NEXT_TOKEN)
    replica.wait_for("/test/units", 200, token=NEXT_TOKEN)
    assert replica.request("/test/units", token=FILE_TOKEN).status == 401
    tokens.write_text("tokens: nonsense")
    wait_until(lambda: "stay good" in replica.log.read_text(), 60, lambda: "nothing is said of the broken file")
    assert replica.request("/test/units", token=NEXT_TOKEN).status == 200


@pytest.mark.parametrize(
    ("authentication", "said"),
    [
        ({"mode": "required"}, "nobody could call; give a tokenFile or serviceAccounts"),
        ({"mode": "required", "tokenFile": "/nowhere/tokens.yaml"}, "/nowhere/tokens.yaml: No such file or directory"),
    ],
)
def test_authentication_without_any_caller_ends_the_process(
    cluster: ApiCluster, authentication: dict[str, str], said: str
) -> None:
    replica = cluster.start_replica(authentication=authentication)
    assert replica.wait_exit() == 1
    assert said in replica.log_lines[-1]["message"]
    assert "error" not in replica.log_lines[-1], "a traceback"
