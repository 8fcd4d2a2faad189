"""Which pod profile a unit or pool gets, and the pods of each profile."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.pod_record import PodRecord
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.controller_manager.gpu_unit.adoption import fits_unit
from gpu_runtime.controller_manager.gpu_unit.children.deployment import deployment as unit_deployment
from gpu_runtime.controller_manager.stock_pool.children.deployment import deployment as pool_deployment
from gpu_runtime.controller_manager.unstructured import RawDeployment
from gpu_runtime.controller_manager.workload import pod_profile
from gpu_runtime.controller_manager.workload.pod_profile import PodBuild, choose_build, find_profile, new_record
from gpu_runtime.controller_manager.workload.status_writer import status_patch
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import Manifest, ObjectMeta
from tests.unit.controller_manager.controller_objects import (
    PORTS,
    as_stored,
    observed_pool,
    observed_unit,
    pool,
    unit,
)

GOLDEN = Path(__file__).parent / "golden"
FIRST = pod_profile.POD_PROFILES[0]
SECOND = replace(FIRST, version=2, dropped_capabilities=("NET_RAW", "CHOWN"))
LATEST = PodBuild(SECOND, "platform:2")
RECORDED = PodBuild(FIRST, "platform:1")
RECORD = PodRecord(profile=1, platform_image="platform:1", generation=3)
FUNCTION = {"enabled": True, "requestID": "double"}


@pytest.fixture
def second_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_profile, "POD_PROFILES", (FIRST, SECOND))


def choose(record: PodRecord | None = RECORD, matches: bool = False, runs: bool = True, **owner: Any) -> PodBuild:
    metadata = ObjectMeta(**{"generation": 3, **owner})
    return choose_build(LATEST, record, metadata, wants_pods=runs, matches_live=lambda _: matches)


ROLL = {Annotation.ROLL_REQUEST: "now"}


@pytest.mark.usefixtures("second_profile")
def test_running_pods_keep_the_recorded_profile() -> None:
    assert choose() == RECORDED
    assert choose(generation=4, matches=True) == RECORDED  # the change of the spec does not change the pod
    assert choose(msgspec.structs.replace(RECORD, roll_request="now"), annotations=ROLL) == RECORDED


@pytest.mark.usefixtures("second_profile")
def test_new_changed_stopped_and_rolled_objects_get_the_latest_profile() -> None:
    assert choose(None) == LATEST
    assert choose(generation=4) == LATEST
    assert choose(runs=False) == LATEST
    assert choose(annotations=ROLL) == LATEST
    assert choose(PodRecord(profile=99, generation=3)) == LATEST  # a later version of the platform made it


def test_record_contains_what_decides_the_next_build() -> None:
    record = new_record(RECORDED, ObjectMeta(generation=3, annotations=ROLL))
    assert record == msgspec.structs.replace(RECORD, roll_request="now")


def test_status_patch_removes_fields_that_a_record_loses() -> None:
    before, after = unit().status, unit().status
    before = msgspec.structs.replace(before, pod=msgspec.structs.replace(RECORD, roll_request="now"))
    after = msgspec.structs.replace(after, pod=PodRecord(profile=1, generation=3))
    patch = status_patch(before, after)["pod"]
    assert (patch["rollRequest"], patch["platformImage"], patch["profile"]) == (None, None, 1)


@pytest.mark.usefixtures("second_profile")
def test_deployment_of_a_running_unit_keeps_profile_and_platform_image() -> None:
    record = PodRecord(profile=1, platform_image="platform:1", generation=1)
    worker = unit(serverless=FUNCTION)
    kept = unit_deployment(observed_unit(msgspec.structs.replace(worker, status=with_pod(worker, record))))
    assert kept["metadata"]["annotations"][Annotation.POD_PROFILE] == "1"
    assert kept["spec"]["template"]["spec"]["initContainers"][0]["image"] == "platform:1"
    new = unit_deployment(observed_unit(worker))
    assert new["metadata"]["annotations"][Annotation.POD_PROFILE] == "2"
    assert new["spec"]["template"]["spec"]["initContainers"][0]["image"] == "stock:1"


@pytest.mark.usefixtures("second_profile")
def test_change_of_a_lifetime_keeps_the_profile_and_a_change_of_the_program_does_not() -> None:
    record = PodRecord(profile=1, generation=1)
    old = unit()
    built = unit_deployment(observed_unit(msgspec.structs.replace(old, status=with_pod(old, record))))
    live = as_stored(built, RawDeployment)
    for spec, version in (({"maxDurationSeconds": 60}, "1"), ({"template": {"args": ["other"]}}, "2")):
        changed = unit(**spec)
        changed = msgspec.structs.replace(
            changed,
            metadata=msgspec.structs.replace(changed.metadata, generation=2),
            status=with_pod(changed, record),
        )
        manifest = unit_deployment(observed_unit(changed, deployment=live))
        assert manifest["metadata"]["annotations"][Annotation.POD_PROFILE] == version


@pytest.mark.usefixtures("second_profile")
def test_unit_that_adopts_a_pod_of_an_older_pool_gets_the_profile_of_the_pod() -> None:
    prepared = pool(image="python", template={"command": ["serve"]}, adoptable=True)
    old_pool = msgspec.structs.replace(prepared, status=with_pod(prepared, PodRecord(profile=1, generation=1)))
    template = pool_deployment(observed_pool(old_pool))["spec"]["template"]
    pod = msgspec.convert({"metadata": template["metadata"] | {"name": "warm-1", "uid": "pod-uid"}}, Pod)
    probes = {"readiness": {"tcpSocket": {}, "periodSeconds": 1}}
    source = {Annotation.SOURCE_STOCK_UID: "pod-uid", Annotation.SOURCE_STOCK_POOL: "warm"}
    observed = observed_unit(unit(annotations=source, template={"command": ["serve"]}, probes=probes), prepared_pod=pod)
    assert fits_unit(observed, pod)
    manifest = unit_deployment(observed)
    assert manifest["metadata"]["annotations"][Annotation.POD_PROFILE] == "1"
    assert manifest["spec"]["template"]["spec"]["containers"] == template["spec"]["containers"]


def with_pod(found: Any, record: PodRecord) -> Any:
    return msgspec.structs.replace(found.status, pod=record)


def sample_pods(version: int) -> dict[str, Manifest]:
    """Return the pod templates of all kinds of Deployments with this profile."""
    record = PodRecord(profile=version, platform_image="platform:1", generation=1)
    spec: dict[str, Any] = {
        "memory": "1Gi",
        "gpu": 1,
        "template": {"ports": PORTS, "init": {"command": ["fetch"]}, "sharedMemory": "512Mi"},
    }
    units = {
        "unit": unit(**spec),
        "unit without GPUs": unit(),
        "worker": unit(serverless=FUNCTION, **spec),
        "stock unit": unit("runtime-stock", gpu=1),
    }
    pools = {
        "pool": pool(gpu=1),
        "adoptable pool": pool(image="python", template={"command": ["serve"]}, adoptable=True),
    }
    built = {
        name: unit_deployment(observed_unit(msgspec.structs.replace(each, status=with_pod(each, record))))
        for name, each in units.items()
    } | {
        name: pool_deployment(observed_pool(msgspec.structs.replace(each, status=with_pod(each, record))))
        for name, each in pools.items()
    }
    return {name: each["spec"]["template"] for name, each in built.items()}


@pytest.mark.parametrize("version", [each.version for each in pod_profile.POD_PROFILES])
def test_pods_of_each_profile_are_the_recorded_ones(version: int) -> None:
    """If this test fails for a released profile, an upgrade of the platform would restart all pods with this profile.

    `WRITE_GOLDEN=1` writes the file of a new profile.
    """
    path = GOLDEN / f"pod_profile_{version}.json"
    data = msgspec.json.format(msgspec.json.encode(sample_pods(version)), indent=2) + b"\n"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_bytes(data)
    assert path.read_bytes() == data


def test_versions_of_the_profiles_are_consecutive() -> None:
    versions = [each.version for each in pod_profile.POD_PROFILES]
    assert versions == list(range(1, len(versions) + 1))
    assert find_profile("1") is FIRST
    assert find_profile("") is None
