"""docs/reference/streams.md: streams, consumers, the record bucket and every NATS subject."""

from collections.abc import Iterator

from docgen.markdown import code, page, table
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.jetstream.stream_specs import ConsumerSpec, StreamSpec

FULL = {"new": "rejects the publish", "old": "deletes the oldest message"}


def streams_page() -> str:
    topology = StreamTopology()
    introduction = (
        "All names start with the setting `nats.prefix` (default `runtime.serverless`); names of streams have it in capitals"
        " with underscores. The runtime API, the activator and the result store create and update the streams when they start."
        " Limits come from `nats.streams` ([settings](settings.md#nats)); this page shows the defaults."
    )
    header = ("stream", "subjects", "retention", "when full", "limits")
    streams = table(header, (_stream(spec) for spec in topology.streams))
    consumers = table(("consumer", "stream", "filter", "ack wait", "removed after"), _consumers(topology))
    return page(
        "Streams and subjects",
        introduction,
        f"## Streams\n\n{streams}",
        f"## Consumers\n\nAll consumers are durable pull consumers with explicit ack.\n\n{consumers}",
        f"## Record bucket\n\n{_bucket(topology)}",
        f"## Subjects\n\n{table(('subject', 'delivery', 'from', 'to', 'content'), _subjects(topology.subjects))}",
    )


def _stream(spec: StreamSpec) -> tuple[str, ...]:
    limits = [f"{spec.max_bytes // 1024**2:,} MiB"] if spec.max_bytes else []
    if spec.max_messages_per_subject:
        limits.append(f"{spec.max_messages_per_subject:,} messages per function")
    if spec.max_age_seconds:
        limits.append(f"{spec.max_age_seconds / 86400:g} days")
    kind = {"workqueue": "until acknowledged", "limits": "until a limit is reached"}[spec.retention]
    return code(spec.name), " ".join(map(code, spec.subjects)), kind, FULL[spec.discard], ", ".join(limits)


def _consumers(topology: StreamTopology) -> Iterator[tuple[str, ...]]:
    for spec in (*topology.shared_consumers(), topology.dispatch_consumer("REQUEST_ID".lower())):
        yield _consumer(spec)


def _consumer(spec: ConsumerSpec) -> tuple[str, ...]:
    removed = f"{spec.inactive_threshold_seconds:g} s without a pull" if spec.inactive_threshold_seconds else "never"
    show = [text.replace("request_id", "<requestID>") for text in (spec.name, spec.filter_subject or "")]
    return code(show[0]), code(spec.stream), code(show[1]), f"{spec.ack_wait_seconds:g} s", removed


def _bucket(topology: StreamTopology) -> str:
    bucket = topology.record_bucket
    return (
        f"`{bucket.name}` is a key-value bucket with one invocation record per invocationID. NATS deletes a record"
        f" {bucket.ttl_seconds:g} s after its last change, and republishes every change to `{bucket.republish_to}.<invocationID>`."
    )


def _subjects(subjects: Subjects) -> Iterator[tuple[str, ...]]:
    request = "request-id"
    rows = (
        (subjects.invoke(request), "JetStream", "runtime-api", "activator", "an accepted invocation"),
        (
            subjects.dispatch(request),
            "JetStream",
            "activator",
            "worker-sidecar",
            "an invocation for the function's workers",
        ),
        (subjects.result(request), "JetStream", "worker-sidecar, activator, runtime-api", "result-store", "a result"),
        (
            subjects.dead_letter(Stream.INVOKE, request),
            "JetStream",
            "any consumer",
            "operators",
            "a dead letter of INVOKE",
        ),
        (
            subjects.dead_letter(Stream.DISPATCH, request),
            "JetStream",
            "any consumer",
            "operators",
            "a dead letter of DISPATCH",
        ),
        (
            subjects.dead_letter(Stream.RESULT, request),
            "JetStream",
            "any consumer",
            "operators",
            "a dead letter of RESULT",
        ),
        (
            subjects.events(request),
            "NATS",
            "worker-sidecar",
            "activator",
            "a worker event: registered, heartbeat, draining",
        ),
        (subjects.demand(request), "NATS", "activator", "leading activator", "a hint that work was dispatched"),
        (
            subjects.cancel(request),
            "NATS",
            "runtime-api",
            "worker-sidecar, activator",
            "the invocationID of a cancelled call",
        ),
        (subjects.control("pod-uid"), "NATS request", "leading activator", "one worker-sidecar", "a drain request"),
        (subjects.query("result"), "NATS request", "runtime-api", "result-store", "a query for one result"),
        (subjects.query("results"), "NATS request", "runtime-api", "result-store", "a query for a page of results"),
    )
    for subject, *rest in rows:
        yield code(subject.replace(request, "<requestID>").replace("pod-uid", "<podUID>")), *rest
    yield (
        code(f"{subjects.state_prefix}.<invocationID>"),
        "NATS",
        "NATS server",
        "runtime-api",
        "a changed invocation record",
    )
