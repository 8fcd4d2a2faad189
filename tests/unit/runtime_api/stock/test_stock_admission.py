"""Requests for pools and stock are validated and normalized."""

from typing import Any

import msgspec
import pytest
from msgspec import convert

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.recorded_requests import RecordedPoolRequest, RecordedSeedRequest
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.stock.pool_routes import POOL_EXAMPLE as POOL
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, SeedStock
from gpu_runtime.runtime_api.stock.stock_admission import admit_pool, admit_seed, pool_key
from gpu_runtime.runtime_api.stock.stock_units import SEED_EXAMPLE as SEED

NAMESPACES = APINamespaceSettings(pools=("default", "pools"))


def pool(**changes: Any) -> RecordedPoolRequest:
    return admit_pool(convert(POOL | changes, CreateStockPool), NAMESPACES)


def seed(**changes: Any) -> RecordedSeedRequest:
    return admit_seed(convert(SEED | changes, SeedStock))


INVALID_POOLS = [
    ({"operationID": ""}, ["operationID"]),
    ({"operationID": "a\nb"}, ["operationID"]),
    ({"name": "Not_A_Name"}, ["name"]),
    ({"name": "p" * 59}, ["name"]),
    ({"namespace": "kube-system"}, ["namespace"]),
    ({"specName": ""}, ["specName"]),
    ({"memory": "not-a-quantity"}, ["memory"]),
    ({"gpu": -1}, ["gpu"]),
    ({"replicas": -1}, ["replicas"]),
    ({"template": {"envs": [{"name": "1 bad"}]}}, ["template.envs[0].name"]),
    ({"template": {"ports": [{"name": "a", "port": 70000}]}}, ["template.ports[0].port"]),
    ({"operationID": "", "memory": "x", "namespace": "other"}, ["operationID", "namespace", "memory"]),
]


@pytest.mark.parametrize(("changes", "fields"), INVALID_POOLS)
def test_invalid_pool_request_is_rejected_with_all_field_paths(changes: dict[str, Any], fields: list[str]) -> None:
    with pytest.raises(Invalid) as raised:
        pool(**changes)
    assert [error.path for error in raised.value.errors] == fields


INVALID_SEEDS = [
    ({"operationID": ""}, ["operationID"]),
    ({"specName": ""}, ["specName"]),
    ({"memory": "0"}, ["memory"]),
    ({"gpu": -1}, ["gpu"]),
    ({"replicas": 0}, ["replicas"]),
    ({"replicas": 1001}, ["replicas"]),
    ({"replicas": -1, "gpu": -1}, ["gpu", "replicas"]),
]


@pytest.mark.parametrize(("changes", "fields"), INVALID_SEEDS)
def test_invalid_seed_request_is_rejected_with_all_field_paths(changes: dict[str, Any], fields: list[str]) -> None:
    with pytest.raises(Invalid) as raised:
        seed(**changes)
    assert [error.path for error in raised.value.errors] == fields


def test_seeding_above_the_limit_states_the_limit() -> None:
    with pytest.raises(Invalid, match="replicas: 1001 is not between 1 and 1000"):
        seed(replicas=1001)


def test_namespace_error_names_the_allowed_namespaces() -> None:
    with pytest.raises(Invalid, match="namespace: 'other' is not allowed for pools; use default or pools"):
        pool(namespace="other")


def test_adoptable_pool_must_be_in_a_namespace_of_units() -> None:
    namespaces = APINamespaceSettings(pools=("default", "team"), units=("runtime-instance", "team"))
    adoptable = convert(POOL | {"adoptable": True}, CreateStockPool)
    text = "namespace: no unit in 'default' can use the pool; .* to runtime-instance or team"
    with pytest.raises(Invalid, match=text):
        admit_pool(adoptable, namespaces)
    assert admit_pool(msgspec.structs.replace(adoptable, namespace="team"), namespaces).namespace == "team"
    assert admit_pool(msgspec.structs.replace(adoptable, adoptable=False), namespaces).namespace == "default"


EQUIVALENT_POOLS = [
    {"namespace": ""},
    {"memory": "16384Mi"},
    {"image": " python:3.12-slim "},
    {"template": POOL["template"] | {"ports": [{"name": "http", "port": 8080}]}},
    {"template": POOL["template"] | {"ports": [{"name": "http", "port": 8080, "protocol": "tcp"}]}},
]


@pytest.mark.parametrize("changes", EQUIVALENT_POOLS)
def test_equivalent_pool_requests_are_the_same_request(changes: dict[str, Any]) -> None:
    assert canonical_request(pool(**changes)) == canonical_request(pool())


@pytest.mark.parametrize("changes", [{"gpu": 2}, {"namespace": "pools"}, {"name": "other"}, {"template": {}}])
def test_different_pool_requests_are_different_requests(changes: dict[str, Any]) -> None:
    assert canonical_request(pool(**changes)) != canonical_request(pool())


def test_default_pool_name_is_derived_from_the_operation_id() -> None:
    assert pool(name="").name == pool(name="").name != pool(name="", operationID="another").name


def test_recorded_request_decodes_to_the_whole_request() -> None:
    recorded_pool, recorded_seed = canonical_request(pool(replicas=0)), canonical_request(seed())
    assert msgspec.json.decode(recorded_pool, type=RecordedPoolRequest) == pool(replicas=0)
    assert msgspec.json.decode(recorded_seed, type=RecordedSeedRequest) == seed()


def test_pool_namespace_must_be_allowed() -> None:
    assert pool_key("", "p", NAMESPACES) == ("default", "p")
    with pytest.raises(Invalid, match="namespace"):
        pool_key("kube-system", "p", NAMESPACES)
