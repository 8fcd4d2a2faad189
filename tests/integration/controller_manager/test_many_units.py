"""Many units become Ready with few writes, and an idle cluster causes no writes."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightkube.resources.core_v1 import Pod

from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import UNIT, ControllerCluster, ControllerManagerProcess

COUNT = 200
"""Enough to count writes per unit. The benchmark of the controller uses the documented maximum."""
SPEC = {"specName": "g1.1", "image": "python", "memory": "1Gi", "template": {"ports": [{"name": "http", "port": 80}]}}
RESYNC_SECONDS = 5


def processor_seconds(manager: ControllerManagerProcess) -> float:
    assert manager.process
    fields = Path(f"/proc/{manager.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident_megabytes(manager: ControllerManagerProcess) -> float:
    assert manager.process
    status = Path(f"/proc/{manager.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def test_many_units_become_ready_and_idle_reconciles_write_nothing(
    unmanaged_cluster: ControllerCluster, unmanaged_namespace: str
) -> None:
    settings = {"resyncSeconds": RESYNC_SECONDS, "log": {"level": "info"}}
    manager = unmanaged_cluster.start_manager(**settings).wait_leading()
    before, started, used = unmanaged_cluster.write_counts(), time.monotonic(), processor_seconds(manager)
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda number: unmanaged_cluster.create(UNIT, unmanaged_namespace, f"u-{number}", SPEC), range(COUNT)
            )
        )
    unmanaged_cluster.wait_all_ready(unmanaged_namespace, COUNT, timeout=240, interval_seconds=2)
    took, used = time.monotonic() - started, processor_seconds(manager) - used
    written = unmanaged_cluster.write_counts() - before
    per_unit = (sum(written.values()) - written["POST gpuunits"]) / COUNT
    print(
        f"{COUNT} units Ready in {took:.1f} s: {used:.1f} s of CPU, {resident_megabytes(manager):.0f} MB,"
        f" {per_unit:.2f} writes per unit of all processes: {dict(written)}"
    )
    # The Deployment controller also writes each Deployment once, to set its revision number.
    assert per_unit <= 7
    assert written["POST deployments"] == written["POST services"] == COUNT, "each child is created once"
    assert len(unmanaged_cluster.list_objects(Pod, unmanaged_namespace)) == COUNT
    assert_idle(unmanaged_cluster, manager)


def assert_idle(cluster: ControllerCluster, manager: ControllerManagerProcess) -> None:
    """Wait for two resyncs of all units, and check that they cause no writes."""
    counts_before = cluster.write_counts()
    reconciles_before = manager.reconciles
    wait_until(lambda: manager.reconciles >= reconciles_before + 2 * COUNT, 120, lambda: "no resync")
    assert cluster.write_counts() == counts_before
    assert manager.crashes == 0
