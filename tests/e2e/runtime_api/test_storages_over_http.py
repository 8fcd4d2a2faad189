"""Data outlives its runtime, as a product's control plane sees it: everything is asked over HTTP, on real pods."""

from typing import Any

import pytest

from localcluster.node import Node
from localcluster.supervisor_client import ProcessFailed, wait_until
from tests.e2e.controller_manager.test_storages_on_a_real_node import in_pod
from tests.e2e.controller_manager.test_units_on_a_real_node import platform_node
from tests.e2e.node_api_requests import request_with_retry

__all__ = ["platform_node"]

SLEEP_TEMPLATE = {"command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"]}


def unit(name: str, *, read_only: bool = False) -> dict[str, Any]:
    mount = {"name": "kept-data", "mountPath": "/workspace", "readOnly": read_only}
    named = {"operationID": f"make-{name}", "name": name, "specName": "e2e.1", "image": "busybox:1.36"}
    return {**named, "template": SLEEP_TEMPLATE, "storageMounts": [mount]}


def wait_answer(node: Node, path: str, **expected: Any) -> None:
    """Wait until what is read there says so."""
    last: tuple[int, dict[str, Any]] = (0, {})

    def says_so() -> bool:
        nonlocal last
        last = request_with_retry(node, "GET", path)
        return all(last[1].get("data", {}).get(name) == value for name, value in expected.items())

    wait_until(says_so, 180, lambda: f"{path}: {last}")


def wait_created(node: Node, body: dict[str, Any]) -> None:
    """Ask until there is stock, the storage is free and somebody has time: the same request may succeed later."""
    last: tuple[int, dict[str, Any]] = (0, {})

    def made() -> bool:
        nonlocal last
        last = request_with_retry(node, "POST", "/gpu-units", body)
        assert last[0] in (200, 201, 409, 503), last
        return last[0] in (200, 201)

    wait_until(made, 180, lambda: f"{body['name']}: {last}")
    wait_answer(node, f"/gpu-units/{body['name']}", ready=True)


def test_a_file_of_one_unit_is_read_by_the_next_one(platform_node: Node) -> None:
    platform_node.kubectl("rollout", "status", "deployment/runtime-api", "--namespace=runtime-system", "--timeout=120s")
    seed = {"operationID": "seed-e2e", "specName": "e2e.1", "memory": "64Mi", "gpu": 1, "replicas": 2}
    assert request_with_retry(platform_node, "POST", "/operator/stock-units", seed)[0] in (200, 202)
    storage = {"name": "kept-data", "size": "1Gi"}
    assert request_with_retry(platform_node, "POST", "/gpu-storages", storage)[0] in (200, 201)
    wait_answer(platform_node, "/gpu-storages/kept-data", phase="Ready")
    wait_created(platform_node, unit("first"))
    in_pod(platform_node, "first", "echo precious > /workspace/file")

    assert request_with_retry(platform_node, "PUT", "/gpu-storages/kept-data", {"size": "2Gi"})[0] == 200
    wait_answer(platform_node, "/gpu-storages/kept-data", capacity="2Gi", mountedBy="first")
    status, said = request_with_retry(platform_node, "DELETE", "/gpu-storages/kept-data")
    assert (status, said["error"]["code"]) == (409, "storage_in_use")
    status, said = request_with_retry(platform_node, "POST", "/gpu-units", unit("second", read_only=True))
    assert (status, said["error"]["code"]) == (409, "storage_in_use")

    assert request_with_retry(platform_node, "DELETE", "/gpu-units/first")[0] == 204
    wait_created(platform_node, unit("second", read_only=True))
    assert in_pod(platform_node, "second", "cat /workspace/file") == "precious"
    with pytest.raises(ProcessFailed, match="Read-only file system"):
        in_pod(platform_node, "second", "echo lost > /workspace/file")

    assert request_with_retry(platform_node, "DELETE", "/gpu-units/second")[0] == 204

    def deleted() -> bool:
        return request_with_retry(platform_node, "DELETE", "/gpu-storages/kept-data")[0] in (204, 404)

    wait_until(deleted, 60, lambda: "the storage is still held")
    wait_until(
        lambda: request_with_retry(platform_node, "GET", "/gpu-storages/kept-data")[0] == 404,
        60,
        lambda: "it is still there",
    )
