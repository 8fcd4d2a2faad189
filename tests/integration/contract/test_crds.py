"""The generated manifests on a real API server: CRD validation, descriptions, printer columns, RBAC and samples."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightkube import ApiError, Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

from gpu_runtime.contract.crd.operation import UNFINISHED_SELECTOR
from gpu_runtime.manifests.samples import sample_manifests
from tests.integration.conftest import CONFIG_DIR, Kubectl

Object = dict[str, Any]
Apply = Callable[[Object], str]

API_VERSION = "runtime.lokiwager.io/v1alpha1"
ACCEPTED = ""
KINDS = {
    kind: create_namespaced_resource("runtime.lokiwager.io", "v1alpha1", kind, f"{kind.lower()}s")
    for kind in ("GPUUnit", "GPUStorage", "StockPool", "Operation")
}

pytestmark = pytest.mark.usefixtures("platform_crds")


@pytest.fixture
def apply(kube: Client, namespace: str) -> Apply:
    """Returns a function that creates or replaces an object and returns the error of the API server, if any."""

    def applied(manifest: Object) -> str:
        kind, name = KINDS[manifest["kind"]], manifest["metadata"]["name"]
        existing = {each.metadata.name: each.metadata for each in kube.list(kind, namespace=namespace) if each.metadata}
        version = {"resourceVersion": existing[name].resourceVersion} if name in existing else {}
        obj = kind.from_dict(manifest | {"metadata": {"name": name, "namespace": namespace} | version})
        try:
            kube.replace(obj) if version else kube.create(obj)
        except ApiError as error:
            return str(error)
        return ACCEPTED

    return applied


def unit(name: str = "demo", **spec: Any) -> Object:
    return new_manifest("GPUUnit", name, {"specName": "g1.1", "image": "python:3.12"} | spec)


def pool(name: str = "demo", **spec: Any) -> Object:
    return new_manifest("StockPool", name, {"specName": "g1.1", "replicas": 1} | spec)


def storage(name: str = "demo", **spec: Any) -> Object:
    return new_manifest("GPUStorage", name, {"size": "20Gi"} | spec)


def operation(name: str = "op-1", **spec: Any) -> Object:
    request = {
        "operationID": "unit-demo-001",
        "type": "CreateUnit",
        "requestHash": "0" * 64,
        "request": '{"image":"python:3.12"}',
        "target": {"kind": "GPUUnit", "namespace": "runtime-instance", "name": "demo"},
    }
    return new_manifest("Operation", name, request | spec)


def new_manifest(kind: str, name: str, spec: Object) -> Object:
    without_unset = {field: value for field, value in spec.items() if value is not None}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": without_unset}


def ports(*numbers: int) -> Object:
    return {"ports": [{"name": f"p{index}", "port": number} for index, number in enumerate(numbers)]}


def mount(name: str, path: str) -> Object:
    return {"name": name, "mountPath": path}


ADMITTED = {
    "a pool of three fields": pool(memory="16Gi"),
    "a pool whose memory is not a quantity": pool(memory="not-a-quantity"),
    "a pool whose image cannot be pulled": pool(image="no-such-registry.invalid/none:1"),
    "a unit whose memory is not a quantity": unit(memory="not-a-quantity"),
    "a stock unit, which has no image": unit(image=None, memory="16Gi", gpu=1),
    "a storage whose size is not a quantity": storage(size="lots"),
    "a stopped function": unit(running=False, serverless={"enabled": True, "requestID": "function-1", "maxWorkers": 1}),
    "one port number under two protocols": unit(
        template={"ports": [{"name": "a", "port": 53}, {"name": "b", "port": 53, "protocol": "UDP"}]}
    ),
    "a unit with the longest name": unit("u" * 63),
    "a pool with the longest name": pool("p" * 58),
    "an operation": operation(),
    "a SeedStock operation without a target name": operation(
        type="SeedStock", target={"kind": "GPUUnit", "namespace": "runtime-stock"}
    ),
}

REJECTED = {
    "a CreateUnit operation without a target name": (
        operation(target={"kind": "GPUUnit", "namespace": "runtime-instance"}),
        "target.name is required unless type is SeedStock",
    ),
    "an operation without a target namespace": (
        operation(target={"kind": "GPUUnit", "namespace": "", "name": "demo"}),
        "spec.target.namespace",
    ),
    "an operation with a stock unit without a name": (
        operation(stock={"namespace": "runtime-stock", "name": "", "uid": "u"}),
        "spec.stock.name",
    ),
    "a name that begins with a digit": (unit("1-demo"), "metadata.name"),
    "a name with a dot, which is invalid for a Service": (unit("demo.one"), "metadata.name"),
    "a pool name that is too long with the prefix pool-": (pool("p" * 59), "metadata.name"),
    "no specName": (unit(specName=None), "spec.specName: Required value"),
    "a specName that is not a label value": (unit(specName="g1 large"), "spec.specName"),
    "negative replicas": (pool(replicas=-1), "spec.replicas"),
    "more replicas than an int32": (pool(replicas=2**31), "spec.replicas"),
    "negative gpu": (unit(gpu=-1), "spec.gpu"),
    "gpu as a string": (unit(gpu="1"), "spec.gpu"),
    "a port out of range": (unit(template=ports(70000)), "spec.template.ports[0].port"),
    "a duplicate port": (
        unit(template=ports(80, 80)),
        "two items of ports must not have the same port and the same protocol",
    ),
    "a duplicate port name": (
        unit(template={"ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}),
        "spec.template.ports[1]: Duplicate value",
    ),
    "an unknown protocol": (unit(template={"ports": [{"name": "a", "port": 1, "protocol": "tcp"}]}), "protocol"),
    "an invalid env name": (pool(template={"envs": [{"name": "1 bad"}]}), "spec.template.envs[0].name"),
    "a duplicate env": (
        pool(template={"envs": [{"name": "A"}, {"name": "A"}]}),
        "spec.template.envs[1]: Duplicate value",
    ),
    "a primary port that is not in the template": (
        unit(template=ports(80), access={"primaryPort": "grpc"}),
        "spec.access.primaryPort: Invalid value: access.primaryPort must be the name of a port in template.ports",
    ),
    "an unknown scheme": (unit(access={"scheme": "gopher"}), "spec.access.scheme"),
    "a relative mount path": (unit(storageMounts=[mount("data", "cache")]), "spec.storageMounts[0].mountPath"),
    "a duplicate storage": (unit(storageMounts=[mount("data", "/a"), mount("data", "/b")]), "Duplicate value"),
    "a duplicate mount path": (
        unit(storageMounts=[mount("a", "/a"), mount("b", "/a")]),
        "two items of storageMounts must not have the same mountPath",
    ),
    "a requestID that is not a subject token": (unit(serverless={"requestID": "a.b"}), "spec.serverless.requestID"),
    "a function without requestID": (unit(serverless={"enabled": True}), "requestID is required when enabled is true"),
    "a template of 240 kB": (
        unit(template={"envs": [{"name": f"V{number}", "value": "x" * 20_000} for number in range(12)]}),
        "command, args and envs together must have at most 32768 characters",
    ),
    "an init command of 240 kB": (
        unit(template={"init": {"command": ["x" * 240_000]}}),
        "command and args together must have at most 32768 characters",
    ),
    "minAvailableCount above maxWorkers": (
        unit(serverless={"requestID": "f", "minAvailableCount": 2}),
        "minAvailableCount must not be greater than maxWorkers",
    ),
    "storage with several workers": (
        unit(serverless={"requestID": "f", "maxWorkers": 2}, storageMounts=[mount("data", "/data")]),
        "a function with more than one worker cannot mount a storage",
    ),
    "a storage without size": (storage(size=None), "spec.size: Required value"),
    "a storage without class": (storage(storageClassName=""), "spec.storageClassName"),
    "an operation of an unknown type": (operation(type="Other"), "spec.type"),
}

FUNCTION = {"requestID": "f"}
ATTACHED = {"unit": "demo"}

CHANGES_REJECTED = {
    "specName of a unit": (unit(), unit(specName="g2.1"), "spec.specName: Invalid value: specName is immutable"),
    "gpu of a unit": (unit(gpu=1), unit(gpu=2), "gpu is immutable"),
    "gpu of a unit, set later": (unit(), unit(gpu=1), "gpu is immutable"),
    "gpu of a unit, removed": (unit(gpu=1), unit(), "gpu is immutable"),
    "requestID of a function": (
        unit(serverless=FUNCTION),
        unit(serverless={"requestID": "g"}),
        "requestID is immutable once it is set",
    ),
    "requestID of a function, removed": (
        unit(serverless=FUNCTION),
        unit(serverless={}),
        "requestID is immutable once it is set",
    ),
    "serverless of a function, removed": (unit(serverless=FUNCTION), unit(), "serverless cannot be removed"),
    "specName of a pool": (pool(), pool(specName="g2.1"), "specName is immutable"),
    "storageClassName of a storage": (storage(), storage(storageClassName="other"), "storageClassName is immutable"),
    "storageClassName of a storage, removed": (
        storage(storageClassName="other"),
        storage(),
        "storageClassName is immutable",
    ),
    "size of a storage, decreased": (
        storage(),
        storage(size="10Gi"),
        "spec.size: Invalid value: size cannot be decreased",
    ),
    "size of a storage, decreased in another unit": (storage(), storage(size="20G"), "size cannot be decreased"),
    "attachedTo of a storage without a release": (
        storage(attachedTo=ATTACHED),
        storage(attachedTo={"unit": "other"}),
        "attachedTo cannot change from one unit to another",
    ),
    "request of an operation": (operation(), operation(request="{}"), "the spec of an operation is immutable"),
    "target of an operation": (
        operation(),
        operation(target={"kind": "GPUUnit", "namespace": "runtime-instance", "name": "other"}),
        "the spec of an operation is immutable",
    ),
}

CHANGES_ADMITTED = {
    "image of a unit": (unit(), unit(image="python:3.13")),
    "invalid memory of a unit, corrected": (unit(memory="not-a-quantity"), unit(memory="1Gi")),
    "a unit that becomes a function": (unit(), unit(serverless=FUNCTION)),
    "a function that is disabled": (
        unit(serverless=FUNCTION | {"enabled": True}),
        unit(serverless=FUNCTION | {"enabled": False}),
    ),
    "gpu of a pool": (pool(gpu=1), pool(gpu=2)),
    "size of a storage, increased": (storage(), storage(size="40Gi")),
    "size of a storage in another unit": (storage(size="1Gi"), storage(size="1024Mi")),
    "invalid size of a storage, corrected": (storage(size="lots"), storage(size="1Gi")),
    "a storage that is attached": (storage(), storage(attachedTo=ATTACHED)),
    "a storage that is released": (storage(attachedTo=ATTACHED), storage()),
    "a storage that the next operation of the unit attaches": (
        storage(attachedTo=ATTACHED),
        storage(attachedTo=ATTACHED | {"operationID": "2"}),
    ),
}


@pytest.mark.parametrize("manifest", ADMITTED.values(), ids=ADMITTED)
def test_valid_object_is_admitted(apply: Apply, manifest: Object) -> None:
    assert apply(manifest) == ACCEPTED


@pytest.mark.parametrize(("manifest", "message"), REJECTED.values(), ids=REJECTED)
def test_invalid_object_is_rejected(apply: Apply, manifest: Object, message: str) -> None:
    assert message in apply(manifest)


@pytest.mark.parametrize(("before", "after", "message"), CHANGES_REJECTED.values(), ids=CHANGES_REJECTED)
def test_immutable_field_change_is_rejected(apply: Apply, before: Object, after: Object, message: str) -> None:
    assert apply(before) == ACCEPTED
    assert message in apply(after)


@pytest.mark.parametrize(("before", "after"), CHANGES_ADMITTED.values(), ids=CHANGES_ADMITTED)
def test_mutable_field_change_is_admitted(apply: Apply, before: Object, after: Object) -> None:
    assert apply(before) == ACCEPTED
    assert apply(after) == ACCEPTED


def test_unknown_field_is_rejected_by_name(kubectl: Kubectl) -> None:
    done = kubectl("create", "--validate=strict", "--dry-run=server", "-f", "-", stdin=json.dumps(unit(replicas=2)))
    assert 'unknown field "spec.replicas"' in done.stderr


def test_every_sample_is_accepted(kubectl: Kubectl, kube: Client) -> None:
    for name in ("runtime-stock", "runtime-instance"):
        kube.apply(Namespace(metadata=ObjectMeta(name=name)), field_manager="test")
    done = kubectl("apply", "--server-side", "--validate=strict", "--dry-run=server", "-k", str(CONFIG_DIR / "samples"))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(sample_manifests())


def test_controller_manager_rbac_allows_its_requests_and_no_others(kubectl: Kubectl) -> None:
    for part in ("namespace", "rbac"):
        done = kubectl("apply", "--server-side", "--validate=strict", "-k", str(CONFIG_DIR / part))
        assert done.returncode == 0, done.stderr

    def may(*request: str) -> bool:
        account = "--as=system:serviceaccount:runtime-system:controller-manager"
        return kubectl("auth", "can-i", *request, account).returncode == 0

    assert may("patch", "gpuunits.runtime.lokiwager.io", "--subresource=status", "-n", "default")
    assert may("create", "deployments.apps", "-n", "default")
    assert may("patch", "leases.coordination.k8s.io/controller-manager", "-n", "runtime-system")
    assert not may("patch", "leases.coordination.k8s.io/controller-manager", "-n", "default")
    assert not may("patch", "leases.coordination.k8s.io/other", "-n", "runtime-system")
    assert may("delete", "gpuunits.runtime.lokiwager.io", "-n", "default")
    assert not may("create", "gpuunits.runtime.lokiwager.io", "-n", "default")
    assert not may("get", "secrets", "-n", "default")
    assert not may("create", "pods", "-n", "default")


def test_kubectl_explain_describes_every_field(kubectl: Kubectl) -> None:
    explained = kubectl("explain", "gpuunit.spec")
    assert explained.returncode == 0, explained.stderr
    assert "<no description>" not in explained.stdout
    text = " ".join(explained.stdout.split())
    assert "The flavor of the unit, for example g1.1" in text
    assert "The number of GPUs (nvidia.com/gpu) that each pod reserves" in text
    all_fields = kubectl("explain", "gpuunit.spec", "--recursive").stdout
    for field in ("primaryPort", "mountPath", "requestID", "minAvailableCount", "socketPath"):
        assert field in all_fields


@pytest.mark.parametrize(
    ("kind", "columns"),
    {
        "stockpools": ["NAME", "SPEC", "DESIRED", "AVAILABLE", "PHASE", "REASON", "AGE"],
        "gpuunits": ["NAME", "SPEC", "GPU", "PHASE", "REASON", "AGE"],
        "gpustorages": ["NAME", "SIZE", "CLASS", "PHASE", "REASON", "CAPACITY", "MOUNTED-BY", "AGE"],
        "operations": ["NAME", "ID", "TYPE", "TARGET", "STATE", "AGE"],
    }.items(),
)
def test_kubectl_get_shows_columns(
    kubectl: Kubectl, apply: Apply, namespace: str, kind: str, columns: list[str]
) -> None:
    for manifest in (unit(), pool(), storage(), operation()):
        assert apply(manifest) == ACCEPTED
    assert kubectl("get", kind, "-n", namespace).stdout.splitlines()[0].split() == columns


def test_status_is_a_subresource_with_defaults(kubectl: Kubectl, apply: Apply, namespace: str) -> None:
    apply(pool())
    status = json.dumps({"status": {"phase": "Progressing"}})
    patch = ("-n", namespace, "--type=merge", "-p", status)
    kubectl("patch", "stockpool", "demo", *patch)
    assert kubectl("get", "stockpool", "demo", "-n", namespace, "-o", "jsonpath={.status}").stdout == ""
    kubectl("patch", "stockpool", "demo", "--subresource=status", *patch)
    stored = json.loads(kubectl("get", "stockpool", "demo", "-n", namespace, "-o", "json").stdout)["status"]
    assert stored == {"phase": "Progressing", "available": 0, "allocated": 0, "observedGeneration": 0}


def test_unfinished_operations_are_selected_by_their_state(kubectl: Kubectl, apply: Apply, namespace: str) -> None:
    for name, state in {"new": "", "running": "Running", "done": "Succeeded", "failed": "Failed"}.items():
        assert apply(operation(name)) == ACCEPTED
        if state:
            status = json.dumps({"status": {"state": state}})
            kubectl("patch", "operation", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", status)
    listed = kubectl("get", "operations", "-n", namespace, "--field-selector", UNFINISHED_SELECTOR, "-o", "name")
    assert sorted(listed.stdout.split()) == [
        "operation.runtime.lokiwager.io/new",
        "operation.runtime.lokiwager.io/running",
    ]


def test_kubectl_get_gpu_runtime_lists_the_whole_category(kubectl: Kubectl, apply: Apply, namespace: str) -> None:
    apply(unit())
    apply(storage())
    listed = kubectl("get", "gpu-runtime", "-n", namespace, "-o", "name").stdout.split()
    assert listed == ["gpustorage.runtime.lokiwager.io/demo", "gpuunit.runtime.lokiwager.io/demo"]


def test_every_generated_file_belongs_to_a_kustomization() -> None:
    for folder in ("crd", "rbac", "samples"):
        listed = (CONFIG_DIR / folder / "kustomization.yaml").read_text()
        files = [path for path in Path(CONFIG_DIR / folder).rglob("*.yaml") if path.name != "kustomization.yaml"]
        assert all(str(path.relative_to(CONFIG_DIR / folder)) in listed for path in files)
