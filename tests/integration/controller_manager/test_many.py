"""Many units: all become Ready for few writes, and an idle cluster causes none."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightkube.resources.core_v1 import Pod

from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import UNIT, Cluster, Manager

COUNT = 200
"""The benchmark of the controller has as many as are promised; here it is a matter of counting."""
SPEC = {"specName": "g1.1", "image": "python", "memory": "1Gi", "template": {"ports": [{"name": "http", "port": 80}]}}
RESYNC_SECONDS = 5


def processor_seconds(manager: Manager) -> float:
    assert manager.process
    fields = Path(f"/proc/{manager.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident_megabytes(manager: Manager) -> float:
    assert manager.process
    status = Path(f"/proc/{manager.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def test_many_units_become_ready_and_then_nothing_is_written(spare: Cluster, spare_namespace: str) -> None:
    settings = {"resyncSeconds": RESYNC_SECONDS, "log": {"level": "info"}}
    manager = spare.manager(**settings).wait_leading()
    before, started, used = spare.writes(), time.monotonic(), processor_seconds(manager)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: spare.create(UNIT, spare_namespace, f"u-{number}", SPEC), range(COUNT)))
    spare.wait_all_ready(spare_namespace, COUNT, timeout=240, every=2)
    took, used = time.monotonic() - started, processor_seconds(manager) - used
    written = spare.writes() - before
    per_unit = (sum(written.values()) - written["POST gpuunits"]) / COUNT
    print(
        f"{COUNT} units Ready in {took:.1f} s: {used:.1f} s of CPU, {resident_megabytes(manager):.0f} MB,"
        f" {per_unit:.2f} writes per unit of all processes: {dict(written)}"
    )
    # The Deployment controller writes each Deployment once itself, to number its revision.
    assert per_unit <= 7
    assert written["POST deployments"] == written["POST services"] == COUNT, "each child is made once"
    assert len(spare.all(Pod, spare_namespace)) == COUNT
    assert_idle(spare, manager)


def assert_idle(cluster: Cluster, manager: Manager) -> None:
    """Every object is looked at again and again, and nothing is written."""
    calm = cluster.writes()
    looks = manager.reconciles
    wait_until(lambda: manager.reconciles >= looks + 2 * COUNT, 120, lambda: "nobody looks again")
    assert cluster.writes() == calm
    assert manager.crashes == 0
