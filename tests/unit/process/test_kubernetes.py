"""A process connects to the cluster of its settings, and knows whether it is the leader."""

from pathlib import Path

import pytest
import yaml

from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.kubernetes import connect_kubernetes, new_candidate
from gpu_runtime.process.settings import InvalidSettings
from gpu_runtime.process.shared_settings import KubernetesSettings, LeaderElectionSettings


def kubeconfig(folder: Path, **user: str) -> str:
    path = folder / "kubeconfig"
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "x", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


async def test_unsupported_kubeconfig_stops_the_process_with_the_field(tmp_path: Path) -> None:
    settings = KubernetesSettings(kubeconfig=kubeconfig(tmp_path, username="a"))
    with pytest.raises(InvalidSettings, match=r"kubernetes: .*kubeconfig: the field username of user 'x'"):
        async with connect_kubernetes(settings, "test", KubeMetrics()):
            pass


@pytest.mark.parametrize(("enabled", "is_leader"), [(True, False), (False, True)])
async def test_replica_without_leader_election_is_always_the_leader(
    tmp_path: Path, enabled: bool, is_leader: bool
) -> None:
    settings, metrics = KubernetesSettings(kubeconfig=kubeconfig(tmp_path)), KubeMetrics()
    async with connect_kubernetes(settings, "test", metrics) as client:
        candidate = new_candidate(client, "test", "ns", LeaderElectionSettings(enabled=enabled), metrics)
        assert candidate.is_leader() is is_leader
        assert (candidate.client is client) is is_leader, "a candidate for the Lease writes through a fenced client"
