"""Storages on a real node, created with kubectl only: the data outlives the units that mount it."""

from typing import Any

import pytest
from lightkube import Client
from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod

from localcluster.node import Node
from localcluster.supervisor_client import ProcessFailed, wait_until
from tests.e2e.controller_manager.test_units_on_a_real_node import (
    GROUP,
    apply_manifest,
    get,
    is_deleted,
    sleeping_unit,
    wait_ready,
)

NAMESPACE = "runtime-instance"


def storage(name: str, size: str = "1Gi", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "GPUStorage",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"size": size, **spec},
    }


def mounting(name: str, storage_name: str, *, read_only: bool = False) -> dict[str, Any]:
    """Return a unit that mounts the storage at /workspace."""
    manifest = sleeping_unit(name, {})
    manifest["spec"]["storageMounts"] = [{"name": storage_name, "mountPath": "/workspace", "readOnly": read_only}]
    return manifest


def in_pod(node: Node, unit: str, line: str) -> str:
    """Run a shell command in the unit's container and return its output."""
    return node.kubectl("exec", f"deployment/{unit}", f"--namespace={NAMESPACE}", "--", "sh", "-c", line).strip()


def status(node: Node, name: str) -> dict[str, Any]:
    return dict((get(node, "gpustorage", NAMESPACE, name) or {}).get("status", {}))


def delete_object(node: Node, kind: str, name: str) -> None:
    node.kubectl("delete", kind, name, f"--namespace={NAMESPACE}", "--timeout=120s")


def test_data_outlives_its_unit_and_is_deleted_with_its_storage(deployed_platform: Node, kube: Client) -> None:
    apply_manifest(deployed_platform, storage("data"))
    apply_manifest(deployed_platform, mounting("writer", "data"))
    wait_ready(deployed_platform, NAMESPACE, "writer")
    assert status(deployed_platform, "data")["mountedBy"] == "writer"
    in_pod(deployed_platform, "writer", "echo precious > /workspace/file")

    apply_manifest(deployed_platform, storage("data", size="2Gi"))
    wait_until(
        lambda: status(deployed_platform, "data").get("capacity") == "2Gi",
        60,
        lambda: str(status(deployed_platform, "data")),
    )
    assert wait_ready(deployed_platform, NAMESPACE, "data", "gpustorage")["status"]["phase"] == "Ready"
    assert in_pod(deployed_platform, "writer", "cat /workspace/file") == "precious", (
        "the volume is expanded while the pod runs"
    )

    # The next unit waits until the pod of the first one is deleted, and then reads the data.
    apply_manifest(deployed_platform, mounting("reader", "data", read_only=True))
    delete_object(deployed_platform, "gpuunit", "writer")
    wait_ready(deployed_platform, NAMESPACE, "reader")
    assert not list(kube.list(Pod, namespace=NAMESPACE, labels={f"{GROUP}/unit": "writer"}))
    assert in_pod(deployed_platform, "reader", "cat /workspace/file") == "precious"
    with pytest.raises(ProcessFailed, match="Read-only file system"):
        in_pod(deployed_platform, "reader", "echo lost > /workspace/file")

    deployed_platform.kubectl("delete", "gpustorage", "data", f"--namespace={NAMESPACE}", "--wait=false")
    assert in_pod(deployed_platform, "reader", "cat /workspace/file") == "precious", (
        "the data of a mounted storage is not deleted"
    )
    delete_object(deployed_platform, "gpuunit", "reader")
    deployed_platform.kubectl("wait", "gpustorage/data", f"--namespace={NAMESPACE}", "--for=delete", "--timeout=120s")
    assert is_deleted(kube, PersistentVolumeClaim, NAMESPACE, "data")


def test_volume_that_waits_for_its_first_consumer_is_mounted(deployed_platform: Node) -> None:
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "on-demand"},
        "provisioner": "localcluster/hostpath",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    apply_manifest(deployed_platform, storage_class)
    apply_manifest(deployed_platform, storage("lazy", storageClassName="on-demand"))

    def reason() -> str:
        return str(next((each["reason"] for each in status(deployed_platform, "lazy").get("conditions", [])), ""))

    wait_until(lambda: reason() == "WaitForFirstConsumer", 60, reason)
    apply_manifest(deployed_platform, mounting("consumer", "lazy"))
    wait_ready(deployed_platform, NAMESPACE, "consumer")
    wait_ready(deployed_platform, NAMESPACE, "lazy", "gpustorage")
    assert in_pod(deployed_platform, "consumer", "echo here > /workspace/file && cat /workspace/file") == "here"
    delete_object(deployed_platform, "gpuunit", "consumer")
    delete_object(deployed_platform, "gpustorage", "lazy")
    deployed_platform.kubectl("delete", "storageclass", "on-demand")
