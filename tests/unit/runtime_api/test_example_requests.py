"""The API accepts the example requests of the README."""

from pathlib import Path

from gpu_runtime.runtime_api.http.decoding import decode_body
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.stock.requests import SeedStock
from gpu_runtime.runtime_api.stock.stock_admission import admit_seed
from gpu_runtime.runtime_api.storages import storage_admission
from gpu_runtime.runtime_api.storages.requests import CreateStorage
from gpu_runtime.runtime_api.units import unit_admission
from gpu_runtime.runtime_api.units.requests import CreateUnit

EXAMPLES = Path(__file__).parents[3] / "examples"
JSON = "application/json"


def example(name: str) -> bytes:
    return (EXAMPLES / name).read_bytes()


def test_example_stock_request_is_accepted() -> None:
    assert admit_seed(decode_body(example("stock.json"), JSON, SeedStock)).replicas == 2


def test_example_storage_and_unit_requests_are_accepted() -> None:
    storage = storage_admission.admit_storage(
        decode_body(example("storage.json"), JSON, CreateStorage), APINamespaceSettings()
    )
    unit = unit_admission.admit_unit(decode_body(example("web.json"), JSON, CreateUnit), APINamespaceSettings())
    assert unit.storage_mounts[0].name == storage.name
    assert unit.namespace == storage.namespace
