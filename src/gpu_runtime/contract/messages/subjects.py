"""The subjects of the serverless plane: built from a prefix, and taken apart again.

<prefix>.invoke.<requestID>              runtime-api → activator
<prefix>.dispatch.<requestID>            activator → a worker of the function
<prefix>.result.<requestID>              worker-sidecar, activator → result-store
<prefix>.dlq.<source>.<requestID>        any consumer that gives up
<prefix>.events.<requestID>              worker-sidecar → activator, plain NATS
<prefix>.demand.<requestID>              activator → leading activator: work was dispatched, plain NATS
<prefix>.cancel.<requestID>              runtime-api → worker-sidecar, activator: an invocationID, plain NATS
<prefix>.control.<instance>              activator → one worker, with an answer, plain NATS
<prefix>.query.<what>                    look-ups with an answer, plain NATS
<prefix>.state.<invocationID>            what the key-value bucket has just stored, plain NATS
"""

from dataclasses import dataclass
from enum import StrEnum

from gpu_runtime.contract.crd.well_known import REQUEST_ID_PATTERN
from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.validation.values import matches

DEFAULT_SUBJECT_PREFIX = "runtime.serverless"
SUBJECT_PREFIX_PATTERN = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"


class Stream(StrEnum):
    """What is kept in a stream of its own."""

    INVOKE = "invoke"
    DISPATCH = "dispatch"
    RESULT = "result"


EVENTS = "events"
DEMAND = "demand"
CANCEL = "cancel"
CONTROL = "control"
DEAD_LETTERS = "dlq"
QUERY = "query"
STATE = "state"
WILDCARD = "*"


class BadSubject(Rejected):
    code = "bad_subject"


@dataclass(frozen=True)
class ParsedSubject:
    """What a subject says."""

    kind: str
    request_id: str
    source: Stream | None = None
    """For dead letters: the queue they come from."""


@dataclass(frozen=True)
class Subjects:
    prefix: str = DEFAULT_SUBJECT_PREFIX

    def __post_init__(self) -> None:
        if not matches(SUBJECT_PREFIX_PATTERN, self.prefix):
            text = f"prefix is {self.prefix!r}; use letters, digits, '-' and '_', in parts with dots between them"
            raise BadSubject(text)

    def stream_subject(self, queue: Stream, request_id: str) -> str:
        return f"{self.prefix}.{queue}.{_subject_token(request_id)}"

    def invoke(self, request_id: str) -> str:
        return self.stream_subject(Stream.INVOKE, request_id)

    def dispatch(self, request_id: str) -> str:
        return self.stream_subject(Stream.DISPATCH, request_id)

    def result(self, request_id: str) -> str:
        return self.stream_subject(Stream.RESULT, request_id)

    def dead_letter(self, source: Stream, request_id: str) -> str:
        return f"{self.prefix}.{DEAD_LETTERS}.{source}.{_subject_token(request_id)}"

    def events(self, request_id: str) -> str:
        return f"{self.prefix}.{EVENTS}.{_subject_token(request_id)}"

    def demand(self, request_id: str) -> str:
        return f"{self.prefix}.{DEMAND}.{_subject_token(request_id)}"

    def cancel(self, request_id: str) -> str:
        return f"{self.prefix}.{CANCEL}.{_subject_token(request_id)}"

    def control(self, pod_uid: str) -> str:
        """Of one worker: its pod's UID."""
        return f"{self.prefix}.{CONTROL}.{_subject_token(pod_uid)}"

    def query(self, what: str) -> str:
        return f"{self.prefix}.{QUERY}.{_subject_token(what)}"

    def all_in_stream(self, queue: Stream) -> str:
        return f"{self.prefix}.{queue}.{WILDCARD}"

    @property
    def all_dead_letters(self) -> str:
        return f"{self.prefix}.{DEAD_LETTERS}.{WILDCARD}.{WILDCARD}"

    @property
    def all_events(self) -> str:
        return f"{self.prefix}.{EVENTS}.{WILDCARD}"

    @property
    def all_demand(self) -> str:
        return f"{self.prefix}.{DEMAND}.{WILDCARD}"

    @property
    def all_cancels(self) -> str:
        return f"{self.prefix}.{CANCEL}.{WILDCARD}"

    @property
    def state_prefix(self) -> str:
        """Where the bucket tells what it stored; the key is the rest of the subject."""
        return f"{self.prefix}.{STATE}"

    def parse(self, subject: str) -> ParsedSubject:
        if not subject.startswith(f"{self.prefix}."):
            raise BadSubject(f"{subject!r} does not begin with {self.prefix!r}")
        match subject[len(self.prefix) + 1 :].split("."):
            case [Stream.INVOKE | Stream.DISPATCH | Stream.RESULT | "events" as kind, request_id]:
                return ParsedSubject(kind, _subject_token(request_id))
            case ["dlq", Stream.INVOKE | Stream.DISPATCH | Stream.RESULT as source, request_id]:
                return ParsedSubject(DEAD_LETTERS, _subject_token(request_id), Stream(source))
        raise BadSubject(f"{subject!r} is no subject of the serverless plane")


def _subject_token(text: str) -> str:
    """One token of a subject: a dot or a wildcard in it would be another subject."""
    if not matches(REQUEST_ID_PATTERN, text):
        raise BadSubject(f"{text!r} is not one token of a subject; use lower-case letters, digits, '-' and '_'")
    return text
