"""Sends requests from the host to the runtime API on a real node, as the control plane of a product does."""

import functools
import json
import urllib.error
import urllib.request
from typing import Any

from lightkube.resources.core_v1 import Service

from localcluster.node import Node


@functools.cache
def api_url(node: Node) -> str:
    """Return the base URL of the API, as the host reaches it."""
    with node.control_plane.client() as client:
        service = client.get(Service, "runtime-api", namespace="runtime-system")
    assert service.spec, service
    assert service.spec.clusterIP, service
    return f"http://{service.spec.clusterIP}:8080/api/v1"


def request_with_retry(
    node: Node, method: str, path: str, body: Any = None, timeout_seconds: float = 40
) -> tuple[int, dict[str, Any]]:
    """Send a request. If the connection breaks, send it once more and print that."""
    try:
        return send_request(api_url(node), method, path, body, timeout_seconds)
    except ConnectionError as error:
        print(f"connection broke for {method} {path} ({error!r}), retrying")
        return send_request(api_url(node), method, path, body, timeout_seconds)


def send_request(
    api: str, method: str, path: str, body: Any = None, timeout_seconds: float = 40
) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON body of the response, also for an error status."""
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(api + path, data, headers, method=method)  # noqa: S310
    try:
        response = urllib.request.urlopen(request, timeout=timeout_seconds)  # noqa: S310
    except urllib.error.HTTPError as error:
        response = error
    with response:
        return int(response.status), dict(json.loads(response.read() or "{}"))
