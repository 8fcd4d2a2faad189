"""Attacks of a user's program that listens on the port of the sidecar before the sidecar does."""

import asyncio
import socket
from pathlib import Path

import pytest
import yaml

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.worker_sidecar.main import run_worker_sidecar
from localcluster.nats_server import NatsAccount
from tests.integration.conftest import CONFIG_DIR
from tests.integration.worker_sidecar.sidecar_harness import sidecar_harness, sidecar_settings


async def test_sidecar_without_its_port_pulls_no_invocations(nats_account: NatsAccount, tmp_path: Path) -> None:
    settings = sidecar_settings(nats_account, str(tmp_path / "framework.sock"))
    async with sidecar_harness(settings) as harness:
        await harness.publish_dispatch("payload")
        taken = socket.create_server(("127.0.0.1", settings.health.port))
        with taken, pytest.raises(Unavailable, match="cannot listen"):
            await run_worker_sidecar(settings, asyncio.Event())
        assert harness.events == []
        await harness.wait_backlog(1)


def test_pod_monitor_of_the_sidecars_has_limits() -> None:
    documents = yaml.safe_load_all((CONFIG_DIR / "prometheus" / "pod-monitors.yaml").read_text())
    (monitor,) = (each["spec"] for each in documents if each["metadata"]["name"] == "worker-sidecar")
    assert monitor["sampleLimit"] <= 1000
    assert monitor["labelLimit"] <= 30
    assert {"labelNameLengthLimit", "labelValueLengthLimit", "bodySizeLimit"} <= monitor.keys()
