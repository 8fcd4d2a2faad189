"""The requests that the README sends are taken as they are."""

from pathlib import Path

from gpu_runtime.runtime_api.http.decoding import read_body
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.stock.requests import SeedStock
from gpu_runtime.runtime_api.stock.stock_admission import accepted_seed
from gpu_runtime.runtime_api.storages import storage_admission as of_storages
from gpu_runtime.runtime_api.storages.requests import CreateStorage
from gpu_runtime.runtime_api.units import unit_admission as of_units
from gpu_runtime.runtime_api.units.requests import CreateUnit

EXAMPLES = Path(__file__).parents[3] / "examples"
JSON = "application/json"


def example(name: str) -> bytes:
    return (EXAMPLES / name).read_bytes()


def test_the_stock() -> None:
    assert accepted_seed(read_body(example("stock.json"), JSON, SeedStock)).replicas == 2


def test_the_storage_and_the_unit_that_mounts_it() -> None:
    storage = of_storages.accepted(read_body(example("storage.json"), JSON, CreateStorage), Namespaces())
    unit = of_units.accepted(read_body(example("web.json"), JSON, CreateUnit), Namespaces())
    assert unit.storage_mounts[0].name == storage.name
    assert unit.namespace == storage.namespace
