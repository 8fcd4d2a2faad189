"""The runtime API as a process of its own, under the identity that its RBAC manifests give it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.kube_api import service_account
from bench.measured_process import Program, program
from localcluster.control_plane import ControlPlane, free_port

IDENTITY = "system:serviceaccount:runtime-system:runtime-api"
TOKEN = "bench-bench-bench-bench"  # noqa: S105 - it opens nothing but this benchmark's own process
WITHOUT_LIMIT = {"requestsPerSecond": 0}
"""One caller makes all requests, and more of them than a replica takes of one caller."""


@dataclass(frozen=True)
class Replica:
    program: Program
    url: str


@contextmanager
def runtime_api(plane: ControlPlane, folder: Path, name: str, **more: Any) -> Iterator[Replica]:
    """A replica whose caches are complete and who knows its callers by their tokens."""
    port, tokens = free_port(), folder / "tokens.yaml"
    token = {"name": "bench", "token": TOKEN, "scopes": ["operator", "runtime"]}
    tokens.write_text(yaml.safe_dump({"tokens": [token]}))
    settings = {
        "api": {"bind": f"127.0.0.1:{port}"},
        "kubernetes": {"kubeconfig": str(service_account(plane, "runtime-api").kubeconfig(folder))},
        "authentication": {"tokenFile": str(tokens)},
        "limits": WITHOUT_LIMIT,
    }
    with program("runtime-api", folder, settings | more, Program.is_ready, name) as started:
        yield Replica(started, f"http://127.0.0.1:{port}")
