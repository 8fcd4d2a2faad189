"""The function of double.py without the Python framework. The contract is HTTP over a unix socket, in any language.

The Python framework adds limits on requests, deadlines, a concurrency limit, and a graceful shutdown on SIGTERM that
waits for running calls.
"""

import json
import os
import signal
import socketserver
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

SOCKET = Path(os.environ.get("GPU_RUNTIME_SOCKET", "/run/gpu-runtime/framework.sock"))
INVOKE = os.environ.get("GPU_RUNTIME_INVOKE_PATH", "/invoke")
HEALTH = os.environ.get("GPU_RUNTIME_HEALTH_PATH", "/healthz")


class Function(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.respond(200 if self.path == HEALTH else 404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != INVOKE:
            return self.respond(404, {})
        try:
            doubled = json.loads(body)["n"] * 2
        except (ValueError, LookupError, TypeError):
            return self.respond(422, {"error": {"type": "BadInput", "message": 'send {"n": <number>}'}})
        return self.respond(200, {"n": doubled})

    def respond(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return self.headers.get("Gpu-Runtime-Invocation-Id", "-")


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # PID 1 of a container ignores SIGTERM without a handler
SOCKET.unlink(missing_ok=True)
with Server(str(SOCKET), Function) as server:
    SOCKET.chmod(0o666)  # the sidecar runs as another user
    server.serve_forever()
