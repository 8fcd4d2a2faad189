"""The runtime API of a real node, asked from the host as a product's control plane would."""

import functools
import json
import urllib.error
import urllib.request
from typing import Any

from lightkube.resources.core_v1 import Service

from localcluster.node import Node


@functools.cache
def api_url(node: Node) -> str:
    """Where the host reaches the API."""
    with node.control_plane.client() as client:
        service = client.get(Service, "runtime-api", namespace="runtime-system")
    assert service.spec, service
    assert service.spec.clusterIP, service
    return f"http://{service.spec.clusterIP}:8080/api/v1"


def request_with_retry(
    node: Node, method: str, path: str, body: Any = None, within: float = 40
) -> tuple[int, dict[str, Any]]:
    """As a client does it that sends once more what was cut off, and says so."""
    try:
        return send_request(api_url(node), method, path, body, within)
    except ConnectionError as cut:
        print(f"{method} {path} was cut off ({cut!r}) and is sent again")
        return send_request(api_url(node), method, path, body, within)


def send_request(api: str, method: str, path: str, body: Any = None, within: float = 40) -> tuple[int, dict[str, Any]]:
    """The status and the document of an answer, be it a refusal or not."""
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(api + path, data, headers, method=method)  # noqa: S310
    try:
        answer = urllib.request.urlopen(request, timeout=within)  # noqa: S310
    except urllib.error.HTTPError as refusal:
        answer = refusal
    with answer:
        return int(answer.status), dict(json.loads(answer.read() or "{}"))
