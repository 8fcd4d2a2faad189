"""Records every authorization request of an API server about the service accounts of the platform.

The API server asks its authorizers in order until one of them allows or denies the request. The recorder adds two
webhook authorizers that never decide. The first one is asked before RBAC and sees every request. The last one is asked
after RBAC and sees only the requests that RBAC did not allow. The webhooks also see the authorization requests of
admission plugins, which the audit log does not contain.
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
    """The requested rights, by service account."""
    denied: defaultdict[str, set[Right]] = field(default_factory=lambda: defaultdict(set))
    """The rights that RBAC did not allow, by service account."""

    def apiserver_flags(self) -> dict[str, object]:
        """Write the authorization configuration and return the flags that make an API server use it."""
        authorizers = [self._webhook("requested"), {"type": "Node", "name": "node"}, {"type": "RBAC", "name": "rbac"}]
        config = {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthorizationConfiguration",
            "authorizers": [*authorizers, self._webhook("denied")],
        }
        path = self.folder / "authorization.yaml"
        path.write_text(yaml.safe_dump(config))
        return {"authorization-mode": None, "authorization-config": path}

    def record(self, webhook: str, review: Any) -> None:
        if review["spec"].get("resourceAttributes", {}).get("resource") == "*":
            return  # a shortcut of admission plugins: they first ask whether the account may do everything
        rights: defaultdict[str, set[Right]] = getattr(self, webhook)
        rights[review["spec"]["user"].removeprefix(PLATFORM_USER_PREFIX)].add(reviewed_right(review))

    def denials(self) -> list[str]:
        return [f"{account} may not {each}" for account, rights in self.denied.items() for each in sorted(rights)]

    def _webhook(self, name: str) -> dict[str, Any]:
        webhook = {
            "timeout": "30s",
            # One request for each right is enough, so the API server may cache the responses.
            "authorizedTTL": "30s",
            "unauthorizedTTL": "30s",
            "subjectAccessReviewVersion": "v1",
            "matchConditionSubjectAccessReviewVersion": "v1",
            "failurePolicy": "NoOpinion",
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": str(self._kubeconfig(name))},
            "matchConditions": [{"expression": f"request.user.startsWith('{PLATFORM_USER_PREFIX}')"}],
        }
        return {"type": "Webhook", "name": name, "webhook": webhook}

    def _kubeconfig(self, webhook: str) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": webhook,
            "contexts": [{"name": webhook, "context": {"cluster": webhook, "user": webhook}}],
            "clusters": [{"name": webhook, "cluster": {"server": f"http://127.0.0.1:{self.port}/{webhook}"}}],
            "users": [{"name": webhook, "user": {}}],
        }
        path = self.folder / f"{webhook}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path


@contextmanager
def authorization_recorder(folder: Path) -> Iterator[AuthorizationRecorder]:
    """Run the webhooks. Each error gets a note with the rights that RBAC denied, because they may be its cause."""
    recorder = AuthorizationRecorder(folder)

    class WebhookHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            recorder.record(self.path.partition("?")[0].strip("/"), review)
            response = json.dumps(NO_OPINION).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is defined by the base class
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), WebhookHandler)
    server.daemon_threads = True
    recorder.port = server.server_address[1]
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield recorder
    except Exception as error:
        error.add_note("\n".join(["Denied by RBAC:", *recorder.denials()]))
        raise
    finally:
        server.shutdown()
        server.server_close()
