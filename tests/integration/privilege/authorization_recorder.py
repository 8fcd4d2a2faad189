"""Every question of an API server whether an account of the platform may do something, overheard.

The server asks its authorizers one after the other until one has an opinion. Here two more than usual are among them,
and neither ever has one: the first hears what RBAC is about to be asked, the last what RBAC did not allow. So they hear
what admission asks on behalf of a request, too, which no audit log tells.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

from gpu_runtime.contract.crd.well_known import SYSTEM_NAMESPACE
from tests.integration.privilege.rbac_rights import Right, reviewed_right

PLATFORM_USER_PREFIX = f"system:serviceaccount:{SYSTEM_NAMESPACE}:"
NO_OPINION = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": {"allowed": False}}


@dataclass
class AuthorizationRecorder:
    folder: Path
    port: int = 0
    requested: defaultdict[str, set[Right]] = field(default_factory=lambda: defaultdict(set))
    """By account."""
    denied: defaultdict[str, set[Right]] = field(default_factory=lambda: defaultdict(set))

    def apiserver_flags(self) -> dict[str, object]:
        """Of an API server that is to be overheard."""
        authorizers = [self._webhook("asked"), {"type": "Node", "name": "node"}, {"type": "RBAC", "name": "rbac"}]
        config = {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthorizationConfiguration",
            "authorizers": [*authorizers, self._webhook("refused")],
        }
        path = self.folder / "authorization.yaml"
        path.write_text(yaml.safe_dump(config))
        return {"authorization-mode": None, "authorization-config": path}

    def record(self, ear: str, review: Any) -> None:
        if review["spec"].get("resourceAttributes", {}).get("resource") == "*":
            return  # admission's shortcut: who may do everything need not be asked about each thing
        heard: defaultdict[str, set[Right]] = getattr(self, ear)
        heard[review["spec"]["user"].removeprefix(PLATFORM_USER_PREFIX)].add(reviewed_right(review))

    def denials(self) -> list[str]:
        return [f"{account} may not {each}" for account, what in self.denied.items() for each in sorted(what)]

    def _webhook(self, name: str) -> dict[str, Any]:
        webhook = {
            "timeout": "30s",
            # What was once heard need not be heard again at once.
            "authorizedTTL": "30s",
            "unauthorizedTTL": "30s",
            "subjectAccessReviewVersion": "v1",
            "matchConditionSubjectAccessReviewVersion": "v1",
            "failurePolicy": "NoOpinion",
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": str(self._kubeconfig(name))},
            "matchConditions": [{"expression": f"request.user.startsWith('{PLATFORM_USER_PREFIX}')"}],
        }
        return {"type": "Webhook", "name": name, "webhook": webhook}

    def _kubeconfig(self, ear: str) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": ear,
            "contexts": [{"name": ear, "context": {"cluster": ear, "user": ear}}],
            "clusters": [{"name": ear, "cluster": {"server": f"http://127.0.0.1:{self.port}/{ear}"}}],
            "users": [{"name": ear, "user": {}}],
        }
        path = self.folder / f"{ear}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path


@contextmanager
def authorization_recorder(folder: Path) -> Iterator[AuthorizationRecorder]:
    """Whatever fails meanwhile may have failed for a right that is missing, so that is told with it."""
    heard = AuthorizationRecorder(folder)

    class Ear(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.record(self.path.partition("?")[0].strip("/"), review)
            answer = json.dumps(NO_OPINION).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - it is called so
            """Nothing: what it hears is looked at, not read."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Ear)
    server.daemon_threads = True
    heard.port = server.server_address[1]
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield heard
    except Exception as failure:
        failure.add_note("\n".join(["What RBAC refused:", *heard.denials()]))
        raise
    finally:
        server.shutdown()
        server.server_close()
