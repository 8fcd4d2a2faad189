"""Real tokens of real service accounts, reviewed by a real API server, and tokens from a file."""

import asyncio
from pathlib import Path

import pytest
import yaml
from lightkube import Client as OtherEyes
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ServiceAccount, ServiceAccountToken

from gpu_runtime.kube.client import connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.meta import Key
from gpu_runtime.runtime_api.http.caller import Caller
from gpu_runtime.runtime_api.http.route import Scope
from gpu_runtime.runtime_api.http.token_review import TokenReviewer
from localcluster.control_plane import ControlPlane
from localcluster.supervisor_client import wait_until
from tests.integration.runtime_api.edge.conftest import IDENTITY, Cluster

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


def test_service_accounts_are_known_by_their_tokens(cluster: Cluster) -> None:
    settings = {"mode": "required", "serviceAccounts": TRUSTED}
    replica = cluster.replica(authentication=settings).wait_ready()
    with cluster.plane.client() as kube:
        right, wrong = token(kube, "shop", "gpu-runtime"), token(kube, "shop", "elsewhere")
        api_server, stranger = token(kube, "shop"), token(kube, "stranger", "gpu-runtime")
    assert replica.ask("/test/slow?seconds=0", token=right).json == {"data": "serviceaccount:default/shop"}
    forged = right[:-6] + ("AAAAAA" if not right.endswith("AAAAAA") else "BBBBBB")
    for refused in (wrong, api_server, forged, "", "no-token-at-all"):
        reply = replica.ask("/test/slow?seconds=0", token=refused)
        assert (reply.status, reply.json["error"]["code"]) == (401, "unauthenticated")
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")
    lacking = replica.ask("/test/operator", token=right)
    assert (lacking.status, "lacks the scope operator" in lacking.json["error"]["message"]) == (403, True)
    assert replica.ask("/test/slow?seconds=0", token=stranger).status == 403
    assert replica.ask("/api/v1/health").status == 200


async def test_the_token_of_a_deleted_account_is_asked_about_again_after_a_minute_and_refused(
    api_plane: ControlPlane,
) -> None:
    time = 0.0
    config = load_config(api_plane.kubeconfig_for("runtime-api", IDENTITY))
    async with connect(config, field_manager="test") as client:
        scopes = {Key("default", "leaving"): frozenset({Scope.RUNTIME})}
        reviewer = TokenReviewer(client, ["gpu-runtime"], scopes, lambda: time)
        with api_plane.client() as kube:
            theirs = token(kube, "leaving", "gpu-runtime")
            known = Caller("serviceaccount:default/leaving", frozenset({Scope.RUNTIME}))
            assert await reviewer.find(theirs) == known
            kube.delete(ServiceAccount, "leaving", namespace="default")
        assert await reviewer.find(theirs) == known
        async with asyncio.timeout(60):  # the API server has a memory of its own, of ten seconds
            while await reviewer.find(theirs) is not None:
                time += 61.0
                await asyncio.sleep(0.2)


def test_while_kubernetes_is_away_nobody_is_called_a_stranger(cluster: Cluster, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(
        yaml.safe_dump({"tokens": [{"name": "ops", "token": FILE_TOKEN, "scopes": ["runtime", "operator"]}]})
    )
    settings = {"mode": "required", "serviceAccounts": TRUSTED, "tokenFile": str(tokens)}
    replica = cluster.replica(authentication=settings).wait_ready()
    with cluster.plane.client() as kube:
        theirs = token(kube, "shop", "gpu-runtime")
    cluster.plane.processes.stop("kube-apiserver")
    reply = replica.ask("/test/slow?seconds=0", token=theirs)
    assert (reply.status, "whose token" in reply.json["error"]["message"]) == (503, True)
    assert replica.ask("/test/slow?seconds=0", token=UNKNOWN_TOKEN).status == 401
    assert replica.ask("/test/slow?seconds=0", token=FILE_TOKEN).json == {"data": "token:ops"}


def test_a_changed_token_file_is_taken_up_while_the_process_runs(cluster: Cluster, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"

    def write(token: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(yaml.safe_dump({"tokens": [{"name": "ops", "token": token, "scopes": ["runtime"]}]}))
        fresh.rename(tokens)

    write(FILE_TOKEN)
    replica = cluster.replica(authentication={"mode": "required", "tokenFile": str(tokens)}).wait_ready()
    assert replica.ask("/test/units", token=FILE_TOKEN).status == 200
    write(NEXT_TOKEN)
    replica.wait_for("/test/units", 200, token=NEXT_TOKEN)
    assert replica.ask("/test/units", token=FILE_TOKEN).status == 401
    tokens.write_text("tokens: nonsense")
    wait_until(lambda: "stay good" in replica.log.read_text(), 60, lambda: "nothing is said of the broken file")
    assert replica.ask("/test/units", token=NEXT_TOKEN).status == 200


@pytest.mark.parametrize(
    ("authentication", "said"),
    [
        ({"mode": "required"}, "nobody could call; give a tokenFile or serviceAccounts"),
        ({"mode": "required", "tokenFile": "/nowhere/tokens.yaml"}, "/nowhere/tokens.yaml: No such file or directory"),
    ],
)
def test_settings_that_let_nobody_in_end_the_process_with_a_sentence(
    cluster: Cluster, authentication: dict[str, str], said: str
) -> None:
    replica = cluster.replica(authentication=authentication)
    assert replica.ended() == 1
    assert said in replica.lines[-1]["message"]
    assert "error" not in replica.lines[-1], "a traceback"
