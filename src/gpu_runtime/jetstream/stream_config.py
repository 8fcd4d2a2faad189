"""Streams, consumers and buckets in the words of JetStream's API, and how what is there differs. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from gpu_runtime.jetstream.stream_specs import DUPLICATE_WINDOW_SECONDS, BucketSpec, ConsumerSpec, StreamSpec

Config: TypeAlias = dict[str, Any]

IMMUTABLE_FIELDS = frozenset({"retention", "storage", "ack_policy", "deliver_policy", "deny_delete"})
"""What JetStream never changes, or only by losing what it holds."""

_SERVER_DEFAULTS: Mapping[str, Any] = {
    "discard_new_per_subject": False,
    "allow_rollup_hdrs": False,
    "deny_delete": False,
    "filter_subject": "",
    "inactive_threshold": 0,
    "max_age": 0,
}
"""What JetStream means where it says nothing."""


class ConfigDifference(NamedTuple):
    field: str
    actual: Any
    desired: Any


def stream_config(spec: StreamSpec) -> Config:
    refusing = spec.discard == "new" and spec.max_messages_per_subject is not None
    return {
        "name": spec.name,
        "subjects": list(spec.subjects),
        "retention": spec.retention,
        "discard": spec.discard,
        "discard_new_per_subject": refusing,
        "storage": spec.storage,
        "num_replicas": spec.replicas,
        "max_age": nanoseconds(spec.max_age_seconds),
        "max_bytes": _limit(spec.max_bytes),
        "max_msgs_per_subject": _limit(spec.max_messages_per_subject),
        "duplicate_window": nanoseconds(
            min(spec.duplicate_window_seconds, spec.max_age_seconds or spec.duplicate_window_seconds)
        ),
    }


def bucket_config(spec: BucketSpec) -> Config:
    told = {"republish": {"src": spec.subject(">"), "dest": f"{spec.republish_to}.>"}} if spec.republish_to else {}
    return told | {
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
        "duplicate_window": nanoseconds(min(DUPLICATE_WINDOW_SECONDS, spec.ttl_seconds or DUPLICATE_WINDOW_SECONDS)),
        "allow_rollup_hdrs": True,
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


def config_differences(found: Config, wanted: Config) -> Iterator[ConfigDifference]:
    """The fields that we decide and that are otherwise. What we do not name is left as it is."""
    for field, value in wanted.items():
        there = found.get(field, _SERVER_DEFAULTS.get(field))
        if isinstance(value, dict) and isinstance(there, dict):
            there = {key: there.get(key) for key in value}
        if there != value:
            yield ConfigDifference(field, there, value)


def nanoseconds(seconds: float | None) -> int:
    return round(seconds * 1_000_000_000) if seconds else 0


def _limit(most: int | None) -> int:
    return -1 if most is None else most
