"""docs/metrics.md names every metric with its labels, and no other."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.controller_manager.metrics import UnitMetrics
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.result_store.metrics import ResultStoreMetrics
from gpu_runtime.runtime_api.http.access_log import AccessLog
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.operations.operation_retention import OperationRetentionMetrics
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
SOURCES = ROOT / "src" / "gpu_runtime"

SECTIONS: Mapping[str, tuple[Callable[[CollectorRegistry], object], ...]] = MappingProxyType(
    {
        "Kubernetes": (KubeMetrics,),
        "controller-manager": (UnitMetrics,),
        "runtime-api": (AccessLog, InvocationMetrics, OperationRetentionMetrics),
        "activator": (ActivatorMetrics,),
        "worker-sidecar": (SidecarMetrics,),
        "result-store": (ResultStoreMetrics,),
    }
)
"""The headings of the page, and what makes the metrics under them."""

SUFFIXES = MappingProxyType({"counter": "_total", "info": "_info"})


class Recording(CollectorRegistry):
    """A registry that tells what was registered: a metric with labels shows nothing before it is first used."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[MetricWrapperBase] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        if isinstance(collector, MetricWrapperBase):
            self.metrics.append(collector)


def exposed(makers: tuple[Callable[[CollectorRegistry], object], ...]) -> dict[str, tuple[str, ...]]:
    """Names as they are scraped, with their labels, of which the library tells nobody officially."""
    registry = Recording()
    for make in makers:
        make(registry)
    return {_name(metric): tuple(metric._labelnames) for metric in registry.metrics}


def _name(metric: MetricWrapperBase) -> str:
    (family,) = metric.describe()
    return f"{family.name}{SUFFIXES.get(family.type, '')}"


def documented(heading: str) -> dict[str, tuple[str, ...]]:
    """The rows of a section: the first cell is the name, the second has the labels."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    section = rest.partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_]+)` \|([^|]*)\|", section, flags=re.MULTILINE)
    return {name: tuple(re.findall(r"`([a-z_]+)`", labels)) for name, labels in rows}


@pytest.mark.parametrize("heading", SECTIONS)
def test_metrics_page_lists_all_metrics_with_their_labels(heading: str) -> None:
    assert documented(heading) == exposed(SECTIONS[heading])


def test_metrics_page_lists_the_common_metrics() -> None:
    families = new_registry("a-process").collect()
    found = {sample.name: tuple(sample.labels) for family in families for sample in family.samples}

    assert documented("Every process") == found


def test_the_page_has_no_other_sections_with_metrics() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert {each for each in headings if documented(each)} == {*SECTIONS, "Every process"}


def test_every_metrics_module_is_covered() -> None:
    known = {make.__module__ for makers in SECTIONS.values() for make in makers} | {new_registry.__module__}

    assert set(_makers_of_metrics()) == known


def _makers_of_metrics() -> Iterator[str]:
    pattern = re.compile(r'\b(Counter|Enum|Gauge|Histogram|Info|Summary)\(\s*f?"')
    for path in SOURCES.rglob("*.py"):
        if pattern.search(path.read_text(encoding="utf-8")):
            yield ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)
