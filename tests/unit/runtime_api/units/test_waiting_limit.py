"""Each caller can have a limited number of operations that wait for stock."""

from typing import Any

import msgspec

from gpu_runtime.contract.crd.operation import OperationState, OperationSummary, OperationType
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import APIInformers, new_informers
from gpu_runtime.runtime_api.http.envelope import http_status
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.metrics import CreateMetrics
from gpu_runtime.runtime_api.units.waiting_limit import WaitingLimit
from tests.unit.runtime_api.runtime_api_objects import STOCK, operation

CREATE = OperationType.CREATE_UNIT
ACCEPTED, RUNNING, *_ = OperationState


class UnusedClient:
    def without_connection_limit(self) -> Any:
        return self

    def with_options(self, *_: Any, **__: Any) -> Any:
        return self


def informers_with(*callers: str, state: OperationState = ACCEPTED, **status: Any) -> APIInformers:
    client: Any = UnusedClient()
    informers = new_informers(client, APINamespaceSettings(), KubeMetrics())
    for number, caller in enumerate(callers):
        full = operation(CREATE, state, **status)
        metadata = msgspec.structs.replace(full.metadata, name=f"op-{number}", uid=str(number), resource_version="1")
        spec = msgspec.structs.replace(full.spec, caller=caller)
        recorded = msgspec.structs.replace(full, metadata=metadata, spec=spec)
        summary = msgspec.json.decode(msgspec.json.encode(recorded), type=OperationSummary)
        informers.unfinished_operations.store.put(summary)
    return informers


def test_only_the_caller_at_its_limit_is_refused() -> None:
    metrics = CreateMetrics()
    limit = WaitingLimit(2, metrics)
    informers = informers_with("flood", "flood", "other")
    excess = limit.excess(informers, "flood")
    assert excess is not None
    assert "2 operations of flood already wait for stock" in excess.message
    assert (excess.code, http_status(type(excess))) == ("too_many_waiting", 429)
    assert limit.excess(informers, "other") is None
    (refused,) = metrics.refused.collect()
    assert [each.value for each in refused.samples if each.name.endswith("_total")] == [1]


def test_operations_in_progress_do_not_count() -> None:
    running = informers_with("one", "one", state=RUNNING, stock=STOCK, attempt=1)
    assert WaitingLimit(1).excess(running, "one") is None
