"""Converts the specs of streams, consumers and buckets to configs of the JetStream API, and compares two configs.

Pure functions: nothing here connects to the server.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from gpu_runtime.jetstream.stream_specs import DUPLICATE_WINDOW_SECONDS, BucketSpec, ConsumerSpec, StreamSpec

Config: TypeAlias = dict[str, Any]

IMMUTABLE_FIELDS = frozenset({"retention", "storage", "ack_policy", "deliver_policy", "deny_delete"})
"""Fields that JetStream cannot change, or can change only with the loss of stored messages."""

_SERVER_DEFAULTS: Mapping[str, Any] = {
    "discard_new_per_subject": False,
    "allow_rollup_hdrs": False,
    "allow_msg_ttl": False,
    "deny_delete": False,
    "filter_subject": "",
    "inactive_threshold": 0,
    "max_age": 0,
}
"""The values of the fields that the server omits from its responses."""


class ConfigDifference(NamedTuple):
    field: str
    actual: Any
    desired: Any


def stream_config(spec: StreamSpec) -> Config:
    discard_new_per_subject = spec.discard == "new" and spec.max_messages_per_subject is not None
    return {
        "name": spec.name,
        "subjects": list(spec.subjects),
        "retention": spec.retention,
        "discard": spec.discard,
        "discard_new_per_subject": discard_new_per_subject,
        "storage": spec.storage,
        "num_replicas": spec.replicas,
        "max_age": nanoseconds(spec.max_age_seconds),
        "max_bytes": _limit(spec.max_bytes),
        "max_msgs_per_subject": _limit(spec.max_messages_per_subject),
        "duplicate_window": _duplicate_window(spec.max_age_seconds),
    }


def bucket_config(spec: BucketSpec) -> Config:
    republish = {"republish": {"src": spec.subject(">"), "dest": f"{spec.republish_to}.>"}} if spec.republish_to else {}
    return republish | {
        "name": spec.stream_name,
        "subjects": [spec.subject(">")],
        "retention": "limits",
        "discard": "new",
        "storage": spec.storage,
        "num_replicas": spec.replicas,
        "max_age": nanoseconds(spec.ttl_seconds),
        "max_bytes": _limit(spec.max_bytes),
        "max_msg_size": _limit(spec.max_value_bytes),
        "max_msgs_per_subject": 1,
        "duplicate_window": _duplicate_window(spec.ttl_seconds),
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
        "deny_delete": True,
    }


def consumer_config(spec: ConsumerSpec) -> Config:
    return {
        "name": spec.name,
        "durable_name": spec.name,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_wait": nanoseconds(spec.ack_wait_seconds),
        "filter_subject": spec.filter_subject,
        "inactive_threshold": nanoseconds(spec.inactive_threshold_seconds),
        "max_deliver": -1,
        "max_ack_pending": -1,
    }


def config_differences(actual: Config, desired: Config) -> Iterator[ConfigDifference]:
    """Yield the fields of `desired` whose actual value differs. Fields that `desired` does not contain are ignored."""
    for field, desired_value in desired.items():
        actual_value = actual.get(field, _SERVER_DEFAULTS.get(field))
        if isinstance(desired_value, dict) and isinstance(actual_value, dict):
            actual_value = {key: actual_value.get(key) for key in desired_value}
        if actual_value != desired_value:
            yield ConfigDifference(field, actual_value, desired_value)


def nanoseconds(seconds: float | None) -> int:
    return round(seconds * 1_000_000_000) if seconds else 0


def _duplicate_window(max_age_seconds: float | None) -> int:
    """Return the duplicate window. The server rejects a window that is longer than the maximum age."""
    return nanoseconds(min(DUPLICATE_WINDOW_SECONDS, max_age_seconds or DUPLICATE_WINDOW_SECONDS))


def _limit(maximum: int | None) -> int:
    return -1 if maximum is None else maximum
