"""Names that are stored in NATS, in Kubernetes objects and in images of users have the values of the golden files."""

from typing import Any

from gpu_runtime.activator import main as activator
from gpu_runtime.activator.worker_names import worker_name
from gpu_runtime.contract import framework_protocol
from gpu_runtime.contract.crd import well_known
from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import OPERATIONS
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS
from gpu_runtime.contract.messages.result_query import RESULT_QUERY, RESULTS_QUERY
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.controller_manager import main as controller_manager
from gpu_runtime.controller_manager.gpu_unit.children import sidecar
from tests.unit.contract.golden_comparison import assert_golden, readable_json


def string_constants(namespace: Any) -> dict[str, str]:
    """Return the constants of a class or module that are strings."""
    return {name: value for name, value in vars(namespace).items() if name.isupper() and isinstance(value, str)}


def nats_names(prefix: str) -> dict[str, Any]:
    subjects = Subjects(prefix)
    topology = StreamTopology(subjects)
    return {
        "subjects": {
            **{stream.value: subjects.stream_subject(stream, "thumbs") for stream in Stream},
            **{f"dead letter of {stream}": subjects.dead_letter(stream, "thumbs") for stream in Stream},
            "events": subjects.events("thumbs", "8c1e"),
            "demand": subjects.demand("thumbs"),
            "cancel": subjects.cancel("thumbs"),
            "reply": subjects.reply("thumbs", "0" * 32, "f" * 32),
            "replies of a replica": subjects.replies("0" * 32),
            "control": subjects.control("8c1e"),
            "query of a result": subjects.query(RESULT_QUERY),
            "query of results": subjects.query(RESULTS_QUERY),
            "state prefix": subjects.state_prefix,
        },
        "streams": {spec.name: list(spec.subjects) for spec in topology.streams},
        "consumers": {
            f"{spec.stream}/{spec.name}": spec.filter_subject
            for spec in (*topology.shared_consumers(), topology.dispatch_consumer("thumbs"))
        },
        "record bucket": topology.record_bucket.name,
        "record key": topology.record_bucket.subject("01HZX-inv_1"),
    }


def test_names_in_nats_have_not_changed() -> None:
    document = {prefix: nats_names(prefix) for prefix in (Subjects().prefix, "blue.v2")}
    assert_golden("names_nats.json", readable_json(document))


def test_names_in_kubernetes_have_not_changed() -> None:
    document = {
        "kinds": {
            each.kind: f"{each.plural}.{each.group}/{each.version}"
            for each in (GPU_UNITS, GPU_STORAGES, STOCK_POOLS, OPERATIONS)
        },
        "labels": string_constants(well_known.Label),
        "annotations": string_constants(well_known.Annotation) | {"SIDECAR_SETTINGS": sidecar.SETTINGS_ANNOTATION},
        "finalizers": string_constants(well_known.Finalizer),
        "labels of a unit": well_known.unit_labels("thumbs", "g1.1", well_known.UnitRole.ACTIVE),
        "labels of a pool": well_known.pool_labels("spare", "g1.1"),
        "labels of a storage": well_known.storage_labels("models"),
        "leases": [activator.PROCESS_NAME, controller_manager.PROCESS_NAME],
        "workers": [worker_name("thumbs", 0), worker_name("t" * 60, 12)],
    }
    assert_golden("names_kubernetes.json", readable_json(document))


def test_names_of_the_framework_protocol_have_not_changed() -> None:
    assert_golden("names_framework.json", readable_json(string_constants(framework_protocol)))
