"""docs/reference/streams.md: streams, consumers, the record bucket and all NATS subjects."""

from collections.abc import Iterator

from docgen.markdown import code, page, table
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.jetstream.stream_specs import ConsumerSpec, StreamSpec

FULL = {"new": "NATS rejects new messages", "old": "NATS deletes the oldest message"}


def streams_page() -> str:
    topology = StreamTopology()
    introduction = (
        "All subjects start with the setting `nats.prefix` (default `runtime.serverless`). Names of streams and buckets start with"
        " the same prefix in upper case, with underscores instead of dots. The runtime API, the activator and the result store"
        " create and update the streams when they start. The limits are settings (`nats.streams`, see"
        " [settings](settings.md#nats)). This page shows the defaults."
    )
    header = ("stream", "subjects", "NATS retains a message", "when the stream is full", "limits")
    streams = table(header, (_stream(spec) for spec in topology.streams))
    consumers = table(("consumer", "stream", "subjects", "ack wait", "NATS deletes the consumer"), _consumers(topology))
    return page(
        "Streams and subjects",
        introduction,
        f"## Streams\n\n{streams}",
        f"## Consumers\n\nAll consumers are durable pull consumers with explicit acknowledgement.\n\n{consumers}",
        f"## Record bucket\n\n{_bucket(topology)}",
        f"## Subjects\n\n{table(('subject', 'sent as', 'sender', 'receiver', 'content'), _subjects(topology.subjects))}",
    )


def _stream(spec: StreamSpec) -> tuple[str, ...]:
    limits = [f"{spec.max_bytes // 1024**2:,} MiB"] if spec.max_bytes else []
    if spec.max_messages_per_subject:
        limits.append(f"{spec.max_messages_per_subject:,} messages per function")
    if spec.max_age_seconds:
        limits.append(f"maximum age {spec.max_age_seconds / 86400:g} days")
    kind = {"workqueue": "until a consumer acknowledges it", "limits": "until a limit is reached"}[spec.retention]
    return code(spec.name), " ".join(map(code, spec.subjects)), kind, FULL[spec.discard], ", ".join(limits)


def _consumers(topology: StreamTopology) -> Iterator[tuple[str, ...]]:
    for spec in (*topology.shared_consumers(), topology.dispatch_consumer("function_id")):
        yield _consumer(spec)


def _consumer(spec: ConsumerSpec) -> tuple[str, ...]:
    removed = (
        f"after {spec.inactive_threshold_seconds:g} s without a pull request"
        if spec.inactive_threshold_seconds
        else "never"
    )
    show = [text.replace("function_id", "<functionID>") for text in (spec.name, spec.filter_subject or "")]
    return (
        code(show[0]),
        code(spec.stream),
        code(show[1]) or "all subjects of the stream",
        f"{spec.ack_wait_seconds:g} s",
        removed,
    )


def _bucket(topology: StreamTopology) -> str:
    bucket = topology.record_bucket
    return (
        f"`{bucket.name}` is a key-value bucket with one invocation record per invocationID. NATS deletes a record"
        f" {bucket.ttl_seconds:g} s after the last change of the record. NATS republishes every change of a record to"
        f" `{bucket.republish_to}.<invocationID>`."
    )


def _subjects(subjects: Subjects) -> Iterator[tuple[str, ...]]:
    function = "function-id"
    rows = (
        (subjects.invoke(function), "JetStream message", "runtime-api", "activator", "an accepted invocation"),
        (
            subjects.dispatch(function),
            "JetStream message",
            "activator",
            "worker-sidecar",
            "a dispatched invocation, which any worker of the function can pull",
        ),
        (
            subjects.result(function),
            "JetStream message",
            "worker-sidecar, activator, runtime-api",
            "result-store",
            "a result",
        ),
        (
            subjects.dead_letter(Stream.INVOKE, function),
            "JetStream message",
            "activator",
            "runtime-api, when an operator requests dead letters",
            "a dead letter from the INVOKE stream",
        ),
        (
            subjects.dead_letter(Stream.DISPATCH, function),
            "JetStream message",
            "worker-sidecar, activator",
            "runtime-api, when an operator requests dead letters",
            "a dead letter from the DISPATCH stream",
        ),
        (
            subjects.dead_letter(Stream.RESULT, function),
            "JetStream message",
            "result-store",
            "runtime-api, when an operator requests dead letters",
            "a dead letter from the RESULT stream",
        ),
        (
            subjects.events(function, "pod-uid"),
            "NATS message",
            "worker-sidecar",
            "activator",
            "a worker event: registered, heartbeat, started, finished or draining",
        ),
        (
            subjects.demand(function),
            "NATS message",
            "activator",
            "leading activator",
            "a demand hint: an invocation of the function waits for a worker",
        ),
        (
            subjects.cancel(function),
            "NATS message",
            "runtime-api",
            "worker-sidecar, activator",
            "the invocationID of a cancelled invocation",
        ),
        (subjects.control("pod-uid"), "NATS request", "leading activator", "one worker-sidecar", "a drain request"),
        (subjects.query("result"), "NATS request", "runtime-api", "result-store", "a query for one result"),
        (subjects.query("results"), "NATS request", "runtime-api", "result-store", "a query for a page of results"),
        (
            subjects.query("result-count"),
            "NATS request",
            "runtime-api",
            "result-store",
            "a query for the number of results of a function",
        ),
    )
    for subject, *rest in rows:
        yield code(subject.replace(function, "<functionID>").replace("pod-uid", "<podUID>")), *rest
    yield (
        code(f"{subjects.state_prefix}.<invocationID>"),
        "NATS message",
        "NATS server",
        "runtime-api",
        "an invocation record after a change",
    )
