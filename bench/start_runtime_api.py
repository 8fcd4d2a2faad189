"""Runs the runtime API as a separate process with the identity of its RBAC manifests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.benchmark_keys import ticket_section
from bench.kube_api import service_account_access
from bench.measured_process import MeasuredProcess, start_process
from localcluster.control_plane import ControlPlane
from localcluster.free_ports import free_port

RUNTIME_API_USER = "system:serviceaccount:runtime-system:runtime-api"
API_TOKEN = "only-for-this-benchmark-4711"  # noqa: S105 - only valid for the process of this benchmark
FLOOD_TOKEN = "only-for-the-flood-of-this-benchmark-4712"  # noqa: S105 - only valid for the process of this benchmark
NO_RATE_LIMIT = {"requestsPerSecond": 0}
"""The limit is off, because the benchmark is one caller and sends more requests than the default limit of a caller."""


@dataclass(frozen=True)
class RuntimeAPIReplica:
    process: MeasuredProcess
    url: str


@contextmanager
def start_runtime_api(plane: ControlPlane, folder: Path, name: str, **overrides: Any) -> Iterator[RuntimeAPIReplica]:
    """Run a replica with token authentication, and wait until its caches are synchronized."""
    port, token_file = free_port(), folder / "tokens.yaml"
    callers = {"bench": API_TOKEN, "flood": FLOOD_TOKEN}
    tokens = [{"name": name, "token": token, "scopes": ["operator", "runtime"]} for name, token in callers.items()]
    token_file.write_text(yaml.safe_dump({"tokens": tokens}))
    settings = {
        "api": {"bindAddress": f"127.0.0.1:{port}"},
        "kubernetes": {"kubeconfig": str(service_account_access(plane, "runtime-api").write_kubeconfig(folder))},
        "authentication": {"tokenFile": str(token_file)},
        "limits": NO_RATE_LIMIT,
        **ticket_section(folder),
    }
    with start_process("runtime-api", folder, settings | overrides, MeasuredProcess.is_ready, name) as process:
        yield RuntimeAPIReplica(process, f"http://127.0.0.1:{port}")
