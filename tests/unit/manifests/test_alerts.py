"""Alerts use only metrics and labels that the processes expose, and every alert is documented."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.controller_manager.metrics import UnitMetrics
from gpu_runtime.controller_manager.settings import SidecarContainerSettings
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.result_store.metrics import ResultStoreMetrics
from gpu_runtime.runtime_api.http.access_log import AccessLog
from gpu_runtime.runtime_api.http.token_file import TokenFileMetrics
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.operations.operation_retention import OperationRetentionMetrics
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics

PROJECT = Path(__file__).parents[3]
PROMETHEUS = PROJECT / "config" / "prometheus"
RUNBOOKS = "docs/operations/alerts.md"
TARGET_LABELS = {"job", "namespace"}

METRICS_CLASSES = (
    ActivatorMetrics,
    InvocationMetrics,
    AccessLog,
    KubeMetrics,
    OperationRetentionMetrics,
    SidecarMetrics,
    ResultStoreMetrics,
    TokenFileMetrics,
    UnitMetrics,
)
SERIES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"], "info": ["_info"]}
PROMQL_KEYWORDS = {"by", "or", "and", "unless", "without", "on", "ignoring", "offset"}


def rules() -> list[dict[str, Any]]:
    (rule,) = yaml.safe_load_all((PROMETHEUS / "alerts.yaml").read_text())
    return [alert for group in rule["spec"]["groups"] for alert in group["rules"]]


def exposed_series() -> set[str]:
    """Return the names of the series of all processes, and `up`, which Prometheus adds to every target."""
    names = {name for metric in new_registry("test").collect() for name in series(metric)}
    for metrics in METRICS_CLASSES:
        registry = CollectorRegistry()  # one per process: two processes can expose the same metric
        metrics(registry)
        names |= {name for metric in registry.collect() for name in series(metric)}
    return {"up"} | names


def series(metric: Metric) -> list[str]:
    return [f"{metric.name}{suffix}" for suffix in SERIES[metric.type]]


def series_in(expression: str) -> set[str]:
    """Return the series names in an expression, without matchers, ranges, groupings and functions."""
    names = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(by|without) \([^)]*\)", " ", expression)
    return set(re.findall(r"\b[a-z_][a-z0-9_]*\b(?!\s*\()", names)) - PROMQL_KEYWORDS


def test_series_names_are_found_in_expressions() -> None:
    expression = 'sum by (le, job) (rate(a_bucket{code=~"5.."}[5m])) / max(b_total) > 0.1\nor absent(up{job="x"} == 1)'
    assert series_in(expression) == {"a_bucket", "b_total", "up"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_alert_uses_only_existing_metrics(rule: dict[str, Any]) -> None:
    assert series_in(rule["expr"])
    assert series_in(rule["expr"]) - exposed_series() == set()


def labels() -> dict[str, set[str]]:
    """Return the labels of the metrics of all processes, by name. Only counters have their suffix, `_total`."""
    labels_by_name: dict[str, set[str]] = {}
    for metrics in METRICS_CLASSES:
        registry = CollectorRegistry()
        metrics(registry)
        for collector in registry._collector_to_names:
            assert isinstance(collector, MetricWrapperBase)
            (metric,) = collector.describe()
            name = metric.name + ("_total" if metric.type == "counter" else "")
            assert labels_by_name.setdefault(name, set(collector._labelnames)) == set(collector._labelnames), name
    return labels_by_name


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_alert_uses_only_existing_labels(rule: dict[str, Any]) -> None:
    labels_by_name = labels() | {"up": set()}
    for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", rule["expr"]):
        metric = name if name in labels_by_name else re.sub("_(bucket|sum|count)$", "", name)
        assert set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", matchers)) <= labels_by_name[metric] | TARGET_LABELS


def test_every_alert_is_documented_and_every_documented_alert_exists() -> None:
    documented = re.findall(r"^### (\w+)$", (PROJECT / RUNBOOKS).read_text(), re.MULTILINE)
    assert [rule["alert"] for rule in rules()] == documented
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS}#{rule['alert'].lower()}"
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_pod_monitor_uses_the_sidecar_port() -> None:
    port = str(SidecarContainerSettings().port)
    (monitor,) = yaml.safe_load_all((PROMETHEUS / "pod-monitors.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    addresses = [each["replacement"] for each in endpoint["relabelings"] if each.get("targetLabel") == "__address__"]
    assert {address.rpartition(":")[2] for address in addresses} == {port}
