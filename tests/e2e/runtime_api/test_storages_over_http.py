"""Data in a storage outlives the units that mount it. The test uses only the HTTP API, with real pods."""

from typing import Any

import pytest

from localcluster.node import Node
from localcluster.supervisor_client import ProcessFailed, wait_until
from tests.e2e.controller_manager.test_storages_on_a_real_node import in_pod
from tests.e2e.node_api_requests import request_with_retry

SLEEP_TEMPLATE = {"command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"]}


def unit(name: str, *, read_only: bool = False) -> dict[str, Any]:
    mount = {"name": "shared-data", "mountPath": "/workspace", "readOnly": read_only}
    request = {"operationID": f"create-{name}", "name": name, "specName": "e2e.1", "image": "busybox:1.36"}
    return {**request, "template": SLEEP_TEMPLATE, "storageMounts": [mount]}


def wait_fields(node: Node, path: str, **expected: Any) -> None:
    """Wait until the object at the path has these fields."""
    last: tuple[int, dict[str, Any]] = (0, {})

    def matches() -> bool:
        nonlocal last
        last = request_with_retry(node, "GET", path)
        return all(last[1].get("data", {}).get(name) == value for name, value in expected.items())

    wait_until(matches, 180, lambda: f"{path}: {last}")


def wait_created(node: Node, body: dict[str, Any]) -> None:
    """Create a unit and wait until it is ready.

    The same request is repeated while no stock is ready, the storage is in use, or the API is overloaded.
    """
    last: tuple[int, dict[str, Any]] = (0, {})

    def is_created() -> bool:
        nonlocal last
        last = request_with_retry(node, "POST", "/gpu-units", body)
        assert last[0] in (200, 201, 409, 503), last
        return last[0] in (200, 201)

    wait_until(is_created, 180, lambda: f"{body['name']}: {last}")
    wait_fields(node, f"/gpu-units/{body['name']}", ready=True)


def test_unit_reads_a_file_that_an_earlier_unit_wrote(deployed_platform: Node) -> None:
    seed = {"operationID": "seed-e2e", "specName": "e2e.1", "memory": "64Mi", "gpu": 1, "replicas": 2}
    assert request_with_retry(deployed_platform, "POST", "/operator/stock-units", seed)[0] in (200, 202)
    storage = {"name": "shared-data", "size": "1Gi"}
    assert request_with_retry(deployed_platform, "POST", "/gpu-storages", storage)[0] in (200, 201)
    wait_fields(deployed_platform, "/gpu-storages/shared-data", phase="Ready")
    wait_created(deployed_platform, unit("first"))
    in_pod(deployed_platform, "first", "echo precious > /workspace/file")

    assert request_with_retry(deployed_platform, "PUT", "/gpu-storages/shared-data", {"size": "2Gi"})[0] == 200
    wait_fields(deployed_platform, "/gpu-storages/shared-data", capacity="2Gi", mountedBy="first")
    status, response = request_with_retry(deployed_platform, "DELETE", "/gpu-storages/shared-data")
    assert (status, response["error"]["code"]) == (409, "storage_in_use")
    status, response = request_with_retry(deployed_platform, "POST", "/gpu-units", unit("second", read_only=True))
    assert (status, response["error"]["code"]) == (409, "storage_in_use")

    assert request_with_retry(deployed_platform, "DELETE", "/gpu-units/first")[0] == 204
    wait_created(deployed_platform, unit("second", read_only=True))
    assert in_pod(deployed_platform, "second", "cat /workspace/file") == "precious"
    with pytest.raises(ProcessFailed, match="Read-only file system"):
        in_pod(deployed_platform, "second", "echo lost > /workspace/file")

    assert request_with_retry(deployed_platform, "DELETE", "/gpu-units/second")[0] == 204

    def is_deleted() -> bool:
        return request_with_retry(deployed_platform, "DELETE", "/gpu-storages/shared-data")[0] in (204, 404)

    wait_until(is_deleted, 60, lambda: "the storage is still in use")
    wait_until(
        lambda: request_with_retry(deployed_platform, "GET", "/gpu-storages/shared-data")[0] == 404,
        60,
        lambda: "the storage still exists",
    )
