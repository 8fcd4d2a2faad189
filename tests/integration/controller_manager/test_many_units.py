"""Many units: all become Ready for few writes, and an idle cluster causes none."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightkube.resources.core_v1 import Pod

from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import UNIT, ControllerCluster, ControllerManagerProcess

COUNT = 200
"""The benchmark of the controller has as many as are promised; here it is a matter of counting."""
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


def test_many_units_become_ready_and_then_nothing_is_written(
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
    # The Deployment controller writes each Deployment once itself, to number its revision.
    assert per_unit <= 7
    assert written["POST deployments"] == written["POST services"] == COUNT, "each child is made once"
    assert len(unmanaged_cluster.list_objects(Pod, unmanaged_namespace)) == COUNT
    assert_idle(unmanaged_cluster, manager)


def assert_idle(cluster: ControllerCluster, manager: ControllerManagerProcess) -> None:
    """Every object is looked at again and again, and nothing is written."""
    calm = cluster.write_counts()
    looks = manager.reconciles
    wait_until(lambda: manager.reconciles >= looks + 2 * COUNT, 120, lambda: "nobody looks again")
    assert cluster.write_counts() == calm
    assert manager.crashes == 0
