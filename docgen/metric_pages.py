"""docs/reference/metrics.md: every metric with type, labels and meaning."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from docgen.markdown import code, page, table
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.controller_manager.metrics import UnitMetrics
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.result_store.metrics import ResultStoreMetrics
from gpu_runtime.runtime_api.http.access_log import AccessLog
from gpu_runtime.runtime_api.http.token_file import TokenFileMetrics
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.operations.operation_retention import OperationRetentionMetrics
from gpu_runtime.runtime_api.units.metrics import CreateMetrics, StockMetrics
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics

CLIENT_GO_TEXT = (
    "The controller manager and the activator expose all of these metrics. The runtime API has no controllers and no Lease. So"
    " the runtime API exposes only `rest_client_*`, `reflector_*` and `gpu_runtime_informer_objects`. The names, labels and label values are"
    " the same as in client-go and controller-runtime, except for the metrics that start with `gpu_runtime_`."
)
LEADER_TEXT = (
    "Only the leading activator updates `gpu_runtime_scaling_decisions_total`, `gpu_runtime_worker_startup_seconds` and"
    " `gpu_runtime_workers`. A replica that loses the Lease sets its `gpu_runtime_workers` to 0. So the sum of `gpu_runtime_workers`"
    " over all replicas is the number of workers."
)

SECTIONS: Mapping[str, tuple[str, tuple[Callable[[CollectorRegistry], object], ...]]] = MappingProxyType(
    {
        "Kubernetes client and controllers": (
            CLIENT_GO_TEXT,
            (KubeMetrics,),
        ),
        "controller-manager": (
            "Every replica of the controller manager counts all units of the cluster. So aggregate `gpu_runtime_units` over the replicas with `max`, not with `sum`.",
            (UnitMetrics,),
        ),
        "runtime-api": (
            "The metrics `gpu_runtime_http_*` do not count requests for `/healthz`, `/readyz`, the OpenAPI document and Swagger UI.",
            (AccessLog, TokenFileMetrics, InvocationMetrics, OperationRetentionMetrics, CreateMetrics, StockMetrics),
        ),
        "activator": (
            LEADER_TEXT,
            (ActivatorMetrics,),
        ),
        "worker-sidecar": (
            "The sidecar in each worker pod serves these metrics on port 20257 (setting `serverless.sidecar.port`).",
            (SidecarMetrics,),
        ),
        "result-store": ("", (ResultStoreMetrics,)),
    }
)
"""For each section of the page: its text, and the classes that register its metrics."""

HEADER = ("name", "type", "labels", "meaning")
SUFFIXES = MappingProxyType({"counter": "_total", "info": "_info"})


class RecordingRegistry(CollectorRegistry):
    """Remembers every registered metric, because a metric with labels exposes no sample before its first use."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[MetricWrapperBase] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        if isinstance(collector, MetricWrapperBase):
            self.metrics.append(collector)


def metrics_page() -> str:
    introduction = (
        "Every process serves `/metrics` in the Prometheus text format on its health port (see [ports](ports.md))."
        " The API port does not serve `/metrics`. A histogram has series with the suffixes `_bucket`, `_sum` and"
        " `_count`. No metric has a label for a function, a unit or a caller, because a cluster may have thousands of"
        " functions, units and callers. To find the function, the unit or the caller, search the [logs](logs.md)."
    )
    sections = [_section("Every process", "", _process_rows())]
    for heading, (text, makers) in SECTIONS.items():
        sections.append(_section(heading, text, _rows(makers)))
    return page("Metrics", introduction, *sections)


def _section(heading: str, text: str, rows: Iterator[tuple[str, ...]]) -> str:
    return f"## {heading}\n\n{text}\n\n{table(HEADER, rows)}".replace("\n\n\n", "\n")


def _rows(makers: tuple[Callable[[CollectorRegistry], object], ...]) -> Iterator[tuple[str, ...]]:
    registry = RecordingRegistry()
    for make in makers:
        make(registry)
    for metric in registry.metrics:
        (family,) = metric.describe()
        name = f"{family.name}{SUFFIXES.get(family.type, '')}"
        labels = " ".join(code(label) for label in metric._labelnames)
        yield code(name), family.type, labels, family.documentation


def _process_rows() -> Iterator[tuple[str, ...]]:
    for family in new_registry("process").collect():
        for sample in {sample.name: sample for sample in family.samples}.values():
            if not sample.name.endswith("_created"):
                labels = " ".join(code(label) for label in sample.labels)
                yield code(sample.name), family.type, labels, family.documentation
