"""The generated manifests on a real API server: accepted, explained, and holding what they say they hold."""

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
    """Creates or replaces an object, and gives what the API server says against it."""

    def applied(manifest: Object) -> str:
        kind, name = KINDS[manifest["kind"]], manifest["metadata"]["name"]
        there = {each.metadata.name: each.metadata for each in kube.list(kind, namespace=namespace) if each.metadata}
        version = {"resourceVersion": there[name].resourceVersion} if name in there else {}
        obj = kind.from_dict(manifest | {"metadata": {"name": name, "namespace": namespace} | version})
        try:
            kube.replace(obj) if version else kube.create(obj)
        except ApiError as refusal:
            return str(refusal)
        return ACCEPTED

    return applied


def unit(name: str = "demo", **spec: Any) -> Object:
    return new_manifest("GPUUnit", name, {"specName": "g1.1", "image": "python:3.12"} | spec)


def pool(name: str = "demo", **spec: Any) -> Object:
    return new_manifest("StockPool", name, {"specName": "g1.1", "replicas": 1} | spec)


def storage(name: str = "demo", **spec: Any) -> Object:
    return new_manifest("GPUStorage", name, {"size": "20Gi"} | spec)


def operation(name: str = "op-1", **spec: Any) -> Object:
    asked = {
        "operationID": "unit-demo-001",
        "type": "CreateUnit",
        "requestHash": "0" * 64,
        "request": '{"image":"python:3.12"}',
        "target": {"kind": "GPUUnit", "namespace": "runtime-instance", "name": "demo"},
    }
    return new_manifest("Operation", name, asked | spec)


def new_manifest(kind: str, name: str, spec: Object) -> Object:
    without_unset = {field: value for field, value in spec.items() if value is not None}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": without_unset}


def ports(*numbers: int) -> Object:
    return {"ports": [{"name": f"p{index}", "port": number} for index, number in enumerate(numbers)]}


def mount(name: str, path: str) -> Object:
    return {"name": name, "mountPath": path}


ADMITTED = {
    "a pool of three fields": pool(memory="16Gi"),
    "a pool whose memory is no quantity": pool(memory="not-a-quantity"),
    "a pool that cannot be pulled": pool(image="no-such-registry.invalid/none:1"),
    "a unit whose memory is no quantity": unit(memory="not-a-quantity"),
    "a stock unit, which has no image": unit(image=None, memory="16Gi", gpu=1),
    "a storage whose size is no quantity": storage(size="lots"),
    "a stopped function": unit(running=False, serverless={"enabled": True, "requestID": "function-1", "maxWorkers": 1}),
    "one port number under two protocols": unit(
        template={"ports": [{"name": "a", "port": 53}, {"name": "b", "port": 53, "protocol": "UDP"}]}
    ),
    "a unit with the longest name": unit("u" * 63),
    "a pool with the longest name": pool("p" * 58),
    "an operation": operation(),
    "a seeding, which names none of what it makes": operation(
        type="SeedStock", target={"kind": "GPUUnit", "namespace": "runtime-stock"}
    ),
}

REFUSED = {
    "an operation that makes something without a name": (
        operation(target={"kind": "GPUUnit", "namespace": "runtime-instance"}),
        "an operation names what it makes",
    ),
    "an operation that makes something nowhere": (
        operation(target={"kind": "GPUUnit", "namespace": "", "name": "demo"}),
        "spec.target.namespace",
    ),
    "an operation that takes stock without a name": (
        operation(stock={"namespace": "runtime-stock", "name": "", "uid": "u"}),
        "spec.stock.name",
    ),
    "a name that begins with a digit": (unit("1-demo"), "metadata.name"),
    "a name with a dot, which no Service can carry": (unit("demo.one"), "metadata.name"),
    "a pool name that leaves no room for pool-": (pool("p" * 59), "metadata.name"),
    "no specName": (unit(specName=None), "spec.specName: Required value"),
    "a specName that is no label value": (unit(specName="g1 large"), "spec.specName"),
    "negative replicas": (pool(replicas=-1), "spec.replicas"),
    "more replicas than a Deployment can count": (pool(replicas=2**31), "spec.replicas"),
    "negative gpu": (unit(gpu=-1), "spec.gpu"),
    "gpu as text": (unit(gpu="1"), "spec.gpu"),
    "a port out of range": (unit(template=ports(70000)), "spec.template.ports[0].port"),
    "a port twice": (unit(template=ports(80, 80)), "ports must differ in number or protocol"),
    "a port name twice": (
        unit(template={"ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}),
        "spec.template.ports[1]: Duplicate value",
    ),
    "an unknown protocol": (unit(template={"ports": [{"name": "a", "port": 1, "protocol": "tcp"}]}), "protocol"),
    "an invalid env name": (pool(template={"envs": [{"name": "1 bad"}]}), "spec.template.envs[0].name"),
    "an env twice": (pool(template={"envs": [{"name": "A"}, {"name": "A"}]}), "spec.template.envs[1]: Duplicate value"),
    "a primary port that the template lacks": (
        unit(template=ports(80), access={"primaryPort": "grpc"}),
        "spec.access.primaryPort: Invalid value: access.primaryPort must name a port of the template",
    ),
    "an unknown scheme": (unit(access={"scheme": "gopher"}), "spec.access.scheme"),
    "a relative mount path": (unit(storageMounts=[mount("data", "cache")]), "spec.storageMounts[0].mountPath"),
    "a storage twice": (unit(storageMounts=[mount("data", "/a"), mount("data", "/b")]), "Duplicate value"),
    "a mount path twice": (unit(storageMounts=[mount("a", "/a"), mount("b", "/a")]), "must differ in mountPath"),
    "a requestID that is no subject token": (unit(serverless={"requestID": "a.b"}), "spec.serverless.requestID"),
    "a function without requestID": (unit(serverless={"enabled": True}), "an enabled function needs a requestID"),
    "more workers kept than allowed": (
        unit(serverless={"requestID": "f", "minAvailableCount": 2}),
        "minAvailableCount must not be above maxWorkers",
    ),
    "storage mounted by many workers": (
        unit(serverless={"requestID": "f", "maxWorkers": 2}, storageMounts=[mount("data", "/data")]),
        "a function with storageMounts has one worker at most",
    ),
    "a storage without size": (storage(size=None), "spec.size: Required value"),
    "a storage without class": (storage(storageClassName=""), "spec.storageClassName"),
    "an operation of an unknown type": (operation(type="Other"), "spec.type"),
}

FUNCTION = {"requestID": "f"}
HELD = {"unit": "demo"}

CHANGES_REFUSED = {
    "a unit's flavor": (unit(), unit(specName="g2.1"), "spec.specName: Invalid value: specName never changes"),
    "a unit's gpu": (unit(gpu=1), unit(gpu=2), "gpu never changes"),
    "a unit's gpu, first unset": (unit(), unit(gpu=1), "gpu never changes"),
    "a unit's gpu, then unset": (unit(gpu=1), unit(), "gpu never changes"),
    "a function's requestID": (
        unit(serverless=FUNCTION),
        unit(serverless={"requestID": "g"}),
        "requestID never changes once it is set",
    ),
    "a function's requestID, then unset": (
        unit(serverless=FUNCTION),
        unit(serverless={}),
        "requestID never changes once it is set",
    ),
    "a function, then none": (unit(serverless=FUNCTION), unit(), "serverless is not taken away again"),
    "a pool's flavor": (pool(), pool(specName="g2.1"), "specName never changes"),
    "a storage's class": (storage(), storage(storageClassName="other"), "storageClassName never changes"),
    "a storage's class, then unset": (
        storage(storageClassName="other"),
        storage(),
        "storageClassName never changes",
    ),
    "a storage's size, less": (storage(), storage(size="10Gi"), "spec.size: Invalid value: size only grows"),
    "a storage's size, less in other units": (storage(), storage(size="20G"), "size only grows"),
    "a storage's unit, without release": (
        storage(attachedTo=HELD),
        storage(attachedTo={"unit": "other"}),
        "attachedTo passes to another unit only after it was released",
    ),
    "what an operation was asked": (operation(), operation(request="{}"), "never changes what was asked"),
    "what an operation makes": (
        operation(),
        operation(target={"kind": "GPUUnit", "namespace": "runtime-instance", "name": "other"}),
        "never changes what was asked",
    ),
}

CHANGES_ADMITTED = {
    "a unit's image": (unit(), unit(image="python:3.13")),
    "a unit's memory, corrected": (unit(memory="not-a-quantity"), unit(memory="1Gi")),
    "a unit that becomes a function": (unit(), unit(serverless=FUNCTION)),
    "a function that is switched off": (
        unit(serverless=FUNCTION | {"enabled": True}),
        unit(serverless=FUNCTION | {"enabled": False}),
    ),
    "a pool's gpu": (pool(gpu=1), pool(gpu=2)),
    "a storage that grows": (storage(), storage(size="40Gi")),
    "a storage's size in other words": (storage(size="1Gi"), storage(size="1024Mi")),
    "a storage's size, corrected": (storage(size="lots"), storage(size="1Gi")),
    "a storage that is attached": (storage(), storage(attachedTo=HELD)),
    "a storage that is released": (storage(attachedTo=HELD), storage()),
    "a storage that the unit's next operation holds": (
        storage(attachedTo=HELD),
        storage(attachedTo=HELD | {"operationID": "2"}),
    ),
}


@pytest.mark.parametrize("manifest", ADMITTED.values(), ids=ADMITTED)
def test_valid_object_is_admitted(apply: Apply, manifest: Object) -> None:
    assert apply(manifest) == ACCEPTED


@pytest.mark.parametrize(("manifest", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_object_is_rejected(apply: Apply, manifest: Object, message: str) -> None:
    assert message in apply(manifest)


@pytest.mark.parametrize(("before", "after", "message"), CHANGES_REFUSED.values(), ids=CHANGES_REFUSED)
def test_immutable_field_change_is_rejected(apply: Apply, before: Object, after: Object, message: str) -> None:
    assert apply(before) == ACCEPTED
    assert message in apply(after)


@pytest.mark.parametrize(("before", "after"), CHANGES_ADMITTED.values(), ids=CHANGES_ADMITTED)
def test_mutable_field_change_is_admitted(apply: Apply, before: Object, after: Object) -> None:
    assert apply(before) == ACCEPTED
    assert apply(after) == ACCEPTED


def test_an_unknown_field_is_named(kubectl: Kubectl) -> None:
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

    def may(*question: str) -> bool:
        account = "--as=system:serviceaccount:runtime-system:controller-manager"
        return kubectl("auth", "can-i", *question, account).returncode == 0

    assert may("patch", "gpuunits.runtime.lokiwager.io", "--subresource=status", "-n", "default")
    assert may("create", "deployments.apps", "-n", "default")
    assert may("patch", "leases.coordination.k8s.io/controller-manager", "-n", "runtime-system")
    assert not may("patch", "leases.coordination.k8s.io/controller-manager", "-n", "default")
    assert not may("patch", "leases.coordination.k8s.io/other", "-n", "runtime-system")
    assert not may("delete", "gpuunits.runtime.lokiwager.io", "-n", "default")
    assert not may("get", "secrets", "-n", "default")
    assert not may("create", "pods", "-n", "default")


def test_kubectl_explain_describes_every_field(kubectl: Kubectl) -> None:
    told = kubectl("explain", "gpuunit.spec")
    assert told.returncode == 0, told.stderr
    assert "<no description>" not in told.stdout
    text = " ".join(told.stdout.split())
    assert "The flavor of the unit, for example g1.1" in text
    assert "How many GPUs the unit holds" in text
    everything = kubectl("explain", "gpuunit.spec", "--recursive").stdout
    for field in ("primaryPort", "mountPath", "requestID", "minAvailableCount", "socketPath"):
        assert field in everything


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
    at = ("-n", namespace, "--type=merge", "-p", status)
    kubectl("patch", "stockpool", "demo", *at)
    assert kubectl("get", "stockpool", "demo", "-n", namespace, "-o", "jsonpath={.status}").stdout == ""
    kubectl("patch", "stockpool", "demo", "--subresource=status", *at)
    seen = json.loads(kubectl("get", "stockpool", "demo", "-n", namespace, "-o", "json").stdout)["status"]
    assert seen == {"phase": "Progressing", "available": 0, "allocated": 0, "observedGeneration": 0}


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
