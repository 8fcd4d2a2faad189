"""One function asks for so many workers with so large templates that their objects fill the etcd of the cluster."""

import pytest
from msgspec import structs

from gpu_runtime.activator.autoscaler import CreateWorkers, ObservedFunction, decide
from gpu_runtime.activator.worker_lifecycle import build_worker
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, Serverless
from gpu_runtime.contract.crd.probes import ExecCheck, Probe, Probes
from gpu_runtime.contract.crd.template import EnvVar, InitCommand, Template
from gpu_runtime.contract.crd.well_known import UnitRole
from gpu_runtime.contract.validation import unit_errors
from gpu_runtime.kube.meta import ObjectMeta
from gpu_runtime.runtime_api.settings import RuntimeAPISettings

FUNCTION = GPUUnitSpec(spec_name="g1.1", image="python:3.12", memory="1Gi", gpu=1)
LARGE_ENVS = tuple(EnvVar(name=f"V{number}", value="x" * 20_000) for number in range(12))


def problems(**fields: object) -> dict[str, str]:
    policy = RuntimeAPISettings().pods.policy
    spec = structs.replace(FUNCTION, **fields)
    return {error.path: str(error) for error in unit_errors(spec, UnitRole.ACTIVE, policy=policy)}


def test_request_for_ten_thousand_workers_is_rejected() -> None:
    errors = problems(serverless=Serverless(enabled=True, request_id="f", max_workers=10_000))
    assert "100" in errors["serverless.maxWorkers"]


@pytest.mark.parametrize(
    "template",
    [
        Template(envs=LARGE_ENVS),
        Template(args=("x" * 240_000,)),
        Template(init=InitCommand(command=("x" * 240_000,))),
    ],
    ids=["envs", "args", "init command"],
)
def test_template_of_240_kilobytes_is_rejected(template: Template) -> None:
    assert "use at most 32768" in problems(template=template)["template"]


def test_probe_of_240_kilobytes_is_rejected() -> None:
    liveness = Probe(exec=ExecCheck(command=("x" * 240_000,)))
    assert "use at most 32768" in problems(probes=Probes(liveness=liveness))["probes"]


def test_function_of_kubectl_gets_at_most_the_ceiling_of_workers() -> None:
    serverless = Serverless(enabled=True, request_id="f", max_workers=10_000, min_available_count=10_000)
    metadata = ObjectMeta(namespace="units", name="f", uid="uid")
    function = GPUUnit(metadata=metadata, spec=structs.replace(FUNCTION, serverless=serverless, running=False))
    assert decide(ObservedFunction(function, (), outstanding=100_000)) == [CreateWorkers(100)]
    assert not problems(serverless=build_worker(function, "f-w0").spec.serverless)
