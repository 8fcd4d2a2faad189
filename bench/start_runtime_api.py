"""The runtime API as a process of its own, under the identity that its RBAC manifests give it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.kube_api import service_account_access
from bench.measured_process import MeasuredProcess, start_process
from localcluster.control_plane import ControlPlane, free_port

RUNTIME_API_USER = "system:serviceaccount:runtime-system:runtime-api"
API_TOKEN = "bench-bench-bench-bench"  # noqa: S105 - it opens nothing but this benchmark's own process
NO_RATE_LIMIT = {"requestsPerSecond": 0}
"""One caller makes all requests, and more of them than a replica takes of one caller."""


@dataclass(frozen=True)
class RuntimeAPIReplica:
    process: MeasuredProcess
    url: str


@contextmanager
def start_runtime_api(plane: ControlPlane, folder: Path, name: str, **more: Any) -> Iterator[RuntimeAPIReplica]:
    """A replica whose caches are complete and who knows its callers by their tokens."""
    port, tokens = free_port(), folder / "tokens.yaml"
    token = {"name": "bench", "token": API_TOKEN, "scopes": ["operator", "runtime"]}
    tokens.write_text(yaml.safe_dump({"tokens": [token]}))
    settings = {
        "api": {"bindAddress": f"127.0.0.1:{port}"},
        "kubernetes": {"kubeconfig": str(service_account_access(plane, "runtime-api").write_kubeconfig(folder))},
        "authentication": {"tokenFile": str(tokens)},
        "limits": NO_RATE_LIMIT,
    }
    with start_process("runtime-api", folder, settings | more, MeasuredProcess.is_ready, name) as started:
        yield RuntimeAPIReplica(started, f"http://127.0.0.1:{port}")
