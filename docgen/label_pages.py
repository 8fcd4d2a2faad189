"""docs/reference/labels.md: labels, annotations and finalizers."""

from docgen.class_constants import documented_constants
from docgen.markdown import code, page, table
from gpu_runtime.contract.crd.well_known import Annotation, Finalizer, Label
from gpu_runtime.controller_manager.gpu_unit.children.sidecar import SETTINGS_ANNOTATION
from gpu_runtime.controller_manager.workload.drift import DESIRED_HASH_ANNOTATION

NAMESPACE_LABELS = (
    (
        "runtime.lokiwager.io/runtime-api-access",
        "On namespaces. An operator sets this label to `true` so that pods of the namespace can connect to the runtime API.",
    ),
    (
        "runtime.lokiwager.io/metrics-access",
        "On namespaces. An operator sets this label to `true` so that Prometheus in the namespace can scrape the platform.",
    ),
)
"""Labels that only the manifests in `config/network-policy` use."""

CONTROLLER_ANNOTATIONS = (
    (
        DESIRED_HASH_ANNOTATION,
        "On the Deployment, Service and NetworkPolicy of a GPUUnit or StockPool. The value is the hash of the spec that the controller manager last wrote to the object. If the desired spec has another hash, the controller manager updates the object.",
    ),
    (
        SETTINGS_ANNOTATION,
        "On pods with a worker sidecar. The value is the content of the settings file of the sidecar.",
    ),
)
"""Annotations that only the controller manager uses."""


def labels_page() -> str:
    labels = [*_rows(Label), *((code(name), meaning) for name, meaning in NAMESPACE_LABELS)]
    annotations = [*_rows(Annotation), *((code(name), meaning) for name, meaning in CONTROLLER_ANNOTATIONS)]
    return page(
        "Labels, annotations and finalizers",
        "This page lists the labels, annotations and finalizers that the platform sets on Kubernetes objects, and the labels that"
        " operators set. The first sentence of each meaning names the objects that have the label, annotation or finalizer.",
        f"## Labels\n\n{table(('label', 'meaning'), labels)}",
        f"## Annotations\n\n{table(('annotation', 'meaning'), annotations)}",
        f"## Finalizers\n\n{table(('finalizer', 'meaning'), _rows(Finalizer))}",
    )


def _rows(names: type) -> list[tuple[str, str]]:
    rows = []
    for constant, (name, meaning) in documented_constants(names).items():
        if not meaning:
            raise LookupError(f"{names.__name__}.{constant} has no docstring")
        rows.append((code(name), meaning))
    return rows
