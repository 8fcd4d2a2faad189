"""Fixtures: a control plane with the platform's manifests, and controller managers as processes that tests can kill.

The controller managers use the service account of the RBAC manifests, so every test also tests these permissions.
"""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any

import pytest
import yaml
from lightkube import ApiError, Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.core_v1 import (
    HostPathVolumeSource,
    ObjectReference,
    PersistentVolumeSpec,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Namespace, PersistentVolume
from lightkube.resources.storage_v1 import StorageClass
from lightkube.types import PatchType

from localcluster import control_plane as control_planes
from localcluster import simulated_nodes
from localcluster.control_plane import ControlPlane
from localcluster.free_ports import free_port
from localcluster.supervisor_client import tail_log, wait_until
from tests.conftest import enter_or_skip
from tests.integration.conftest import CONFIG_DIR

GROUP = "runtime.lokiwager.io"
UNIT = create_namespaced_resource(GROUP, "v1alpha1", "GPUUnit", "gpuunits")
QUEUE = create_namespaced_resource(GROUP, "v1alpha1", "FunctionQueue", "functionqueues")
POOL = create_namespaced_resource(GROUP, "v1alpha1", "StockPool", "stockpools")
STORAGE = create_namespaced_resource(GROUP, "v1alpha1", "GPUStorage", "gpustorages")

CONTROLLER_MANAGER_USER = "system:serviceaccount:runtime-system:controller-manager"
GPU_RUNTIME_PROGRAM = Path(sys.executable).with_name("gpu-runtime")
QUICK_ELECTION = {"leaseDurationSeconds": 5, "renewDeadlineSeconds": 4, "retryPeriodSeconds": 0.5}
"""For tests that wait until a lease expires. With much shorter times, a busy machine misses the renew deadline."""

DEFAULT_STORAGE_CLASS = "rook-ceph-block"
"""The StorageClass of storages without spec.storageClassName."""

Object = dict[str, Any]

METRIC_LABEL_PATTERN = re.compile(r'(\w+)="([^"]*)"')
CRD_PLURALS = ("gpuunits", "gpustorages", "stockpools")
CHILD_PLURALS = ("deployments", "services", "networkpolicies", "persistentvolumeclaims")
WRITTEN_RESOURCES = (*CRD_PLURALS, *(f"{kind}/status" for kind in CRD_PLURALS), *CHILD_PLURALS)


@dataclass
class ControllerManagerProcess:
    """A controller manager in its own process."""

    folder: Path
    kubeconfig: Path
    settings: Object = field(default_factory=dict)
    program: tuple[str, ...] = (str(GPU_RUNTIME_PROGRAM),)
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> "ControllerManagerProcess":
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "settings.yaml"
        settings = {
            "log": {"level": "debug", "format": "text"},
            "health": {"bindAddress": f"127.0.0.1:{self.port}"},
            "kubernetes": {"kubeconfig": str(self.kubeconfig)},
            "images": {"stock": "gpu-runtime:local", "placeholder": "gpu-runtime:local"},
            "gracefulShutdownTimeoutSeconds": 5,
        }
        config.write_text(yaml.safe_dump(settings | self.settings))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self.program, "controller-manager", "--config", config],
                stderr=log,
            )
        return self

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def wait_ready(self) -> "ControllerManagerProcess":
        wait_until(lambda: self.http_status("/readyz") == 200, 180, lambda: f"not ready:\n{tail_log(self.log, 40)}")
        return self

    def wait_leading(self) -> "ControllerManagerProcess":
        wait_until(
            lambda: self.metric("leader_election_master_status{") == 1,
            60,
            lambda: f"not leading:\n{tail_log(self.log, 40)}",
        )
        return self

    def http_status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            error.close()
            return int(error.code)
        except OSError:
            return 0

    def metric(self, prefix: str) -> float:
        """Return the sum of all samples with this prefix, or 0 if there is none or the process does not respond."""
        return self.sum_samples(lambda line: line.startswith(prefix))

    def sum_samples(self, matches: Callable[[str], bool]) -> float:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as response:
                lines = response.read().decode().splitlines()
        except OSError:
            return 0
        return sum(float(line.rpartition(" ")[2]) for line in lines if matches(line))

    @property
    def crashes(self) -> float:
        """The number of reconciles that raised an unexpected exception."""
        return self.metric("controller_runtime_reconcile_panics_total{")

    @property
    def reconciles(self) -> float:
        return self.metric("controller_runtime_reconcile_total{")

    def signal(self, number: Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def stop(self, number: Signals = Signals.SIGKILL) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(Signals.SIGCONT)
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process = None
        return code


@dataclass
class ControllerCluster:
    """A control plane with the platform's manifests, and operations on it that tests need."""

    control_plane: ControlPlane
    kube: Client
    folder: Path
    managers: list[ControllerManagerProcess] = field(default_factory=list)

    def start_manager(self, *program: str, **settings: Any) -> ControllerManagerProcess:
        """Start a controller manager. `program` is a command in place of `gpu-runtime`."""
        number = len(self.managers)
        identity = self.control_plane.kubeconfig_for("manager", CONTROLLER_MANAGER_USER)
        manager = ControllerManagerProcess(self.folder / f"manager-{number}", identity, settings)
        manager.program = program or manager.program
        self.managers.append(manager)
        return manager.start()

    def stop_managers(self) -> None:
        for manager in self.managers:
            manager.stop()

    @property
    def leader(self) -> ControllerManagerProcess:
        return next(manager for manager in self.managers if manager.metric("leader_election_master_status{") == 1)

    def write_counts(self) -> Counter[str]:
        """Count the write requests of all clients to the resources that the controller manager writes.

        Events, Leases and the status of Deployments, which Kubernetes writes itself, are not counted.
        """
        counts: Counter[str] = Counter()
        for line in self.control_plane.kubectl("get", "--raw", "/metrics").splitlines():
            if line.startswith("apiserver_request_total{"):
                labels = dict(METRIC_LABEL_PATTERN.findall(line))
                resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
                if resource in WRITTEN_RESOURCES and labels["verb"] in ("POST", "PUT", "PATCH", "APPLY", "DELETE"):
                    counts[f"{labels['verb']} {resource}"] += int(float(line.rpartition(" ")[2]))
        return counts

    def trigger_reconcile(self, kind: Any, namespace: str, name: str) -> None:
        """Trigger a reconcile of an object with an unrelated annotation, and wait for the reconcile."""
        manager = self.leader
        before = manager.reconciles
        self.merge_patch(
            kind, namespace, name, {"metadata": {"annotations": {"example.com/touched": uuid.uuid4().hex}}}
        )
        wait_until(lambda: manager.reconciles > before, 60, lambda: f"{name} was not reconciled")

    def create(self, kind: Any, namespace: str, name: str, spec: Object, **metadata: Any) -> Object:
        created = self.kube.create(
            kind(metadata=ObjectMeta(name=name, namespace=namespace, **metadata), spec=spec), namespace=namespace
        )
        return as_dict(created)

    def get(self, kind: Any, namespace: str, name: str) -> Object | None:
        try:
            return as_dict(self.kube.get(kind, name, namespace=namespace))
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise

    def merge_patch(self, kind: Any, namespace: str, name: str, patch: Object) -> None:
        self.kube.patch(kind, name, patch, namespace=namespace, patch_type=PatchType.MERGE)

    def patch_status(self, kind: Any, namespace: str, name: str, status: Object) -> None:
        """Write a status in place of the component that normally writes it."""
        self.kube.patch(kind.Status, name, {"status": status}, namespace=namespace, patch_type=PatchType.MERGE)

    def create_volume(
        self, namespace: str, name: str, size: str = "1Gi", storage_class: str = DEFAULT_STORAGE_CLASS
    ) -> str:
        """Create a volume that only the PVC of this name can bind, because the control plane has no provisioner."""
        source, claim = HostPathVolumeSource(path="/data"), ObjectReference(namespace=namespace, name=name)
        volume = PersistentVolumeSpec(
            accessModes=["ReadWriteOnce"],
            capacity={"storage": size},
            claimRef=claim,
            hostPath=source,
            storageClassName=storage_class,
            persistentVolumeReclaimPolicy="Retain",
        )
        volume_name = f"{namespace}-{name}"
        self.kube.create(PersistentVolume(metadata=ObjectMeta(name=volume_name), spec=volume))
        return volume_name

    def create_ready_storage(self, namespace: str, name: str, **spec: Any) -> Object:
        """Create a storage with a volume, and wait until it is Ready."""
        self.create_volume(namespace, name)
        self.create(STORAGE, namespace, name, {"size": "1Gi", **spec})
        return self.wait_reason(STORAGE, namespace, name, "StorageReady")

    def create_storage_class(self, name: str, *, allow_expansion: bool = False, binding: str = "Immediate") -> None:
        """Create a StorageClass whose provisioner does not exist. An existing StorageClass is kept."""
        if name not in [each["metadata"]["name"] for each in map(as_dict, self.kube.list(StorageClass))]:
            self.kube.create(
                StorageClass(
                    metadata=ObjectMeta(name=name),
                    provisioner="example.com/missing",
                    allowVolumeExpansion=allow_expansion,
                    volumeBindingMode=binding,
                )
            )

    def add_node(self, name: str, gpus: int) -> None:
        """Add a simulated node."""
        simulated_nodes.add_node(self.kube, name, gpus)

    def namespace_uid(self, name: str) -> str:
        metadata = self.kube.get(Namespace, name).metadata
        assert metadata
        assert metadata.uid
        return metadata.uid

    def json_patch(self, kind: Any, namespace: str, name: str, *operations: Object) -> None:
        """Apply a JSON patch (RFC 6902)."""
        self.kube.patch(kind, name, list(operations), namespace=namespace, patch_type=PatchType.JSON)

    def wait_for(
        self, kind: Any, namespace: str, name: str, condition: Callable[[Object], bool], timeout: float = 60
    ) -> Object:
        """Wait until the object fulfills the condition, and return it."""
        last: Object | None = None

        def holds() -> bool:
            nonlocal last
            last = self.get(kind, namespace, name)
            return last is not None and condition(last)

        wait_until(holds, timeout, lambda: f"{name}: {json.dumps((last or {}).get('status'), indent=1, default=str)}")
        assert last
        return last

    def wait_reason(self, kind: Any, namespace: str, name: str, reason: str, timeout: float = 60) -> Object:
        return self.wait_for(
            kind, namespace, name, lambda found: ready_condition(found).get("reason") == reason, timeout
        )

    def list_objects(self, kind: Any, namespace: str) -> list[Object]:
        return [as_dict(found) for found in self.kube.list(kind, namespace=namespace, chunk_size=500)]

    def wait_all_ready(self, namespace: str, count: int, timeout: float = 120, interval_seconds: float = 0.1) -> None:
        """Wait until the namespace has this number of units, all Ready.

        Use a long interval for thousands of units: frequent lists slow down the API server.
        """
        units: list[Object] = []

        def are_ready() -> bool:
            units[:] = self.list_objects(UNIT, namespace)
            return len(units) == count and all(ready_condition(unit).get("status") == "True" for unit in units)

        wait_until(
            are_ready,
            timeout,
            lambda: f"not all {count} units are Ready: {self._describe_unready(namespace, units)}",
            interval_seconds,
        )

    def _describe_unready(self, namespace: str, units: list[Object]) -> str:
        """Return the reasons of all units, and the children of the first unit that is not Ready."""
        reasons = dict(Counter(ready_condition(unit).get("reason") for unit in units))
        unready = next(
            (unit["metadata"]["name"] for unit in units if ready_condition(unit).get("status") != "True"), None
        )
        if unready is None:
            return str(reasons)
        selector = f"--selector={GROUP}/unit={unready}"
        children = self.control_plane.kubectl(
            "get", "deployments,replicasets,pods", "-n", namespace, selector, "-o", "yaml"
        )
        return f"{reasons}\n{children}"

    def is_deleted(self, kind: Any, namespace: str, name: str) -> bool:
        return self.get(kind, namespace, name) is None


def as_dict(found: Any) -> Object:
    return dict(found.to_dict())


def ready_condition(found: Object) -> Object:
    """Return the Ready condition of an object, or an empty dict."""
    conditions = found.get("status", {}).get("conditions", [])
    return next((dict(each) for each in conditions if each["type"] == "Ready"), {})


def install_manifests(plane: ControlPlane) -> None:
    for part in ("namespace", "priority", "crd", "rbac"):
        plane.kubectl("apply", "--server-side", "--force-conflicts", "--validate=strict", "-k", str(CONFIG_DIR / part))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerCluster]:
    """A cluster with one controller manager, which is the leader."""
    with (
        enter_or_skip(control_planes.temporary_control_plane(nodes=4, gpus_per_node=8)) as plane,
        plane.client() as kube,
    ):
        install_manifests(plane)
        cluster = ControllerCluster(plane, kube, tmp_path_factory.mktemp("managers"))
        cluster.start_manager().wait_ready().wait_leading()
        yield cluster
        cluster.stop_managers()


@pytest.fixture(scope="package")
def garbage_collector_ready(cluster: ControllerCluster) -> None:
    """Wait until the garbage collector watches the platform's kinds. It discovers new kinds only every 30 seconds."""
    wait_garbage_collector(cluster)


def wait_garbage_collector(cluster: ControllerCluster) -> None:
    name = "collected"
    cluster.create(UNIT, "runtime-stock", name, {"specName": "g1.1"})
    cluster.wait_for(Deployment, "runtime-stock", name, lambda _: True)
    cluster.kube.delete(UNIT, name, namespace="runtime-stock")
    wait_until(
        lambda: cluster.is_deleted(Deployment, "runtime-stock", name),
        60,
        lambda: "the garbage collector does not delete children",
    )


@pytest.fixture(scope="package")
def shared_unmanaged_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerCluster]:
    with (
        enter_or_skip(control_planes.temporary_control_plane(nodes=4, gpus_per_node=8)) as plane,
        plane.client() as kube,
    ):
        install_manifests(plane)
        yield ControllerCluster(plane, kube, tmp_path_factory.mktemp("unmanaged-cluster"))


@pytest.fixture
def unmanaged_cluster(shared_unmanaged_cluster: ControllerCluster) -> Iterator[ControllerCluster]:
    """A cluster without a controller manager, for tests that start and kill managers or break the cluster."""
    yield shared_unmanaged_cluster
    shared_unmanaged_cluster.stop_managers()
    # Killed managers do not release the Lease. Without it, the next test does not wait until it expires.
    shared_unmanaged_cluster.control_plane.kubectl(
        "delete", "lease", "controller-manager", "-n=runtime-system", "--ignore-not-found"
    )


@pytest.fixture
def namespace(cluster: ControllerCluster) -> Iterator[str]:
    with temporary_namespace(cluster) as name:
        yield name


@pytest.fixture
def unmanaged_namespace(unmanaged_cluster: ControllerCluster) -> Iterator[str]:
    with temporary_namespace(unmanaged_cluster) as name:
        yield name


@contextmanager
def temporary_namespace(cluster: ControllerCluster) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:12]}"
    cluster.kube.create(Namespace(metadata=ObjectMeta(name=name)))
    yield name
    cluster.kube.delete(Namespace, name)
