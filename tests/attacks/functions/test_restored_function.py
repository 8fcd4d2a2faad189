"""An administrator restores functions from a backup. The command must not take the queue of another function."""

import pytest

from gpu_runtime.cli.main import main
from localcluster.supervisor_client import wait_until
from tests.attacks.functions.test_request_id_theft import function, queue_of, wait_for_queue
from tests.integration.controller_manager.conftest import UNIT, ControllerCluster


def restore(cluster: ControllerCluster, namespace: str, name: str, function_id: str) -> int:
    kubeconfig = f"--kubeconfig={cluster.control_plane.kubeconfig}"
    return main(["functions", "restore", name, f"--namespace={namespace}", f"--function-id={function_id}", kubeconfig])


def test_restored_function_gets_its_old_function_id(cluster: ControllerCluster, namespace: str) -> None:
    wait_for_queue(cluster, cluster.create(UNIT, namespace, "restored", function(namespace)))
    assert restore(cluster, namespace, "restored", f"old-{namespace}") == 0

    def has_old_id() -> bool:
        return (queue_of(cluster, namespace) or {}).get("functionID") == f"old-{namespace}"

    wait_until(has_old_id, 60, lambda: str(queue_of(cluster, namespace)))


def test_restore_does_not_take_the_queue_of_another_function(
    cluster: ControllerCluster, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = wait_for_queue(cluster, cluster.create(UNIT, namespace, "victim", function(namespace)))
    cluster.create(UNIT, namespace, "thief", function(namespace))
    cluster.create(UNIT, namespace, "other", function(f"{namespace}-other"))
    assert restore(cluster, namespace, "thief", "any") == 1
    assert restore(cluster, namespace, "other", victim["functionID"]) == 1
    assert restore(cluster, namespace, "absent", "any") == 1
    assert restore(cluster, namespace, "victim", "two.tokens") == 1
    assert "owns the requestID" in capsys.readouterr().err
    assert queue_of(cluster, namespace) == victim
