"""Sample objects of every kind that users create: short, complete and runnable."""

import msgspec

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage, GPUStorageSpec
from gpu_runtime.contract.crd.gpu_unit import (
    GPU_UNITS,
    Access,
    GPUUnit,
    GPUUnitSpec,
    Serverless,
    StorageMount,
)
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool, StockPoolSpec
from gpu_runtime.contract.crd.template import EnvVar, Port, Template
from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, STOCK_NAMESPACE
from gpu_runtime.kube.meta import ApiResource, Manifest, ObjectMeta, T

SAMPLE_IMAGE = "python:3.12-slim"
HTTP_SERVER = Template(
    command=("python",),
    args=("-m", "http.server", "8080"),
    envs=(EnvVar(name="MODEL_ID", value="demo-model"),),
    ports=(Port(name="http", port=8080),),
)
DOUBLING_PROGRAM = """\
from gpu_runtime.framework import handler, serve

@handler
def run(request):
    return {"n": request.payload["n"] * 2}

serve()
"""

POOL = StockPool(
    metadata=ObjectMeta(name="pool-g1-demo", namespace="default"),
    spec=StockPoolSpec(spec_name="g1.1", image=SAMPLE_IMAGE, memory="16Gi", gpu=1, replicas=1, template=HTTP_SERVER),
)
STOCK_UNIT = GPUUnit(
    metadata=ObjectMeta(name="stock-g1-demo", namespace=STOCK_NAMESPACE),
    spec=GPUUnitSpec(spec_name="g1.1", memory="16Gi", gpu=1),
)
STORAGE = GPUStorage(
    metadata=ObjectMeta(name="model-cache", namespace=INSTANCE_NAMESPACE), spec=GPUStorageSpec(size="20Gi")
)
WEB_UNIT = GPUUnit(
    metadata=ObjectMeta(name="web", namespace=INSTANCE_NAMESPACE),
    spec=GPUUnitSpec(
        spec_name="g1.1",
        image=SAMPLE_IMAGE,
        memory="16Gi",
        gpu=1,
        template=HTTP_SERVER,
        access=Access(primary_port="http", scheme="http"),
    ),
)
UNIT_WITH_STORAGE = GPUUnit(
    metadata=ObjectMeta(name="demo-instance", namespace=INSTANCE_NAMESPACE),
    spec=msgspec.structs.replace(
        WEB_UNIT.spec, storage_mounts=(StorageMount(name="model-cache", mount_path="/workspace/cache"),)
    ),
)
FUNCTION = GPUUnit(
    metadata=ObjectMeta(name="doubling", namespace=INSTANCE_NAMESPACE),
    spec=GPUUnitSpec(
        spec_name="g1.1",
        image="gpu-runtime:local",
        memory="16Gi",
        gpu=1,
        template=Template(command=("python", "-c"), args=(DOUBLING_PROGRAM,)),
        serverless=Serverless(enabled=True, request_id="doubling", max_workers=4),
        running=False,
    ),
)


def sample_manifests() -> dict[str, Manifest]:
    """Return the sample manifests by file name."""
    return {
        "runtime_v1alpha1_stockpool.yaml": _manifest(STOCK_POOLS, POOL),
        "runtime_v1alpha1_gpuunit_stock.yaml": _manifest(GPU_UNITS, STOCK_UNIT),
        "runtime_v1alpha1_gpustorage.yaml": _manifest(GPU_STORAGES, STORAGE),
        "runtime_v1alpha1_gpuunit_web.yaml": _manifest(GPU_UNITS, WEB_UNIT),
        "runtime_v1alpha1_gpuunit.yaml": _manifest(GPU_UNITS, UNIT_WITH_STORAGE),
        "runtime_v1alpha1_gpuunit_function.yaml": _manifest(GPU_UNITS, FUNCTION),
    }


def _manifest(resource: ApiResource[T], sample: T) -> Manifest:
    # Convert through JSON, because to_builtins() would keep the tuples of the model and manifests need lists.
    manifest: Manifest = msgspec.json.decode(msgspec.json.encode(sample))
    manifest.pop("status", None)
    return {"apiVersion": resource.api_version, "kind": resource.kind} | manifest
