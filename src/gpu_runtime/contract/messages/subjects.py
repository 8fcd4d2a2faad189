"""Builds and parses the NATS subjects of the serverless plane.

Subjects of JetStream messages. Streams store these messages:

<prefix>.invoke.<requestID>              runtime-api → activator
<prefix>.dispatch.<requestID>            activator → a worker of the function
<prefix>.result.<requestID>              worker-sidecar, activator → result-store
<prefix>.dlq.<source>.<requestID>        any consumer that dead-letters a message

Subjects of core NATS messages. No stream stores these messages:

<prefix>.events.<requestID>              worker-sidecar → activator
<prefix>.demand.<requestID>              activator → leading activator: an invocation was dispatched
<prefix>.cancel.<requestID>              runtime-api → worker-sidecar, activator: an invocationID
<prefix>.control.<podUID>                activator → one worker, request/reply
<prefix>.query.<name>                    runtime-api → result-store, request/reply
<prefix>.state.<invocationID>            republished changes of the key-value bucket
"""

from dataclasses import dataclass
from enum import StrEnum

from gpu_runtime.contract.crd.well_known import REQUEST_ID_PATTERN
from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.validation.values import matches

DEFAULT_SUBJECT_PREFIX = "runtime.serverless"
SUBJECT_PREFIX_PATTERN = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"


class Stream(StrEnum):
    """The work queue streams. Each value is also the subject token of its messages."""

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
    """The parts of a subject."""

    kind: str
    request_id: str
    source: Stream | None = None
    """For dead letters: the stream that contained the original message."""


@dataclass(frozen=True)
class Subjects:
    prefix: str = DEFAULT_SUBJECT_PREFIX

    def __post_init__(self) -> None:
        if not matches(SUBJECT_PREFIX_PATTERN, self.prefix):
            text = f"prefix is {self.prefix!r}; use parts of letters, digits, '-' and '_', separated by dots"
            raise BadSubject(text)

    def stream_subject(self, stream: Stream, request_id: str) -> str:
        return f"{self.prefix}.{stream}.{_subject_token(request_id)}"

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
        """The control subject of one worker, identified by the UID of its pod."""
        return f"{self.prefix}.{CONTROL}.{_subject_token(pod_uid)}"

    def query(self, name: str) -> str:
        return f"{self.prefix}.{QUERY}.{_subject_token(name)}"

    def all_functions(self, kind: str) -> str:
        """All subjects of this kind: the name of a stream, EVENTS, DEMAND or CANCEL. Each subject is for a function."""
        return f"{self.prefix}.{kind}.{WILDCARD}"

    @property
    def all_dead_letters(self) -> str:
        return f"{self.prefix}.{DEAD_LETTERS}.{WILDCARD}.{WILDCARD}"

    @property
    def state_prefix(self) -> str:
        """The prefix of the subjects on which the server republishes changes of the bucket. The key follows it."""
        return f"{self.prefix}.{STATE}"

    def parse(self, subject: str) -> ParsedSubject:
        if not subject.startswith(f"{self.prefix}."):
            raise BadSubject(f"{subject!r} does not begin with {self.prefix!r}")
        match subject[len(self.prefix) + 1 :].split("."):
            case [Stream.INVOKE | Stream.DISPATCH | Stream.RESULT | "events" as kind, request_id]:
                return ParsedSubject(kind, _subject_token(request_id))
            case ["dlq", Stream.INVOKE | Stream.DISPATCH | Stream.RESULT as source, request_id]:
                return ParsedSubject(DEAD_LETTERS, _subject_token(request_id), Stream(source))
        raise BadSubject(f"{subject!r} is not a subject of the serverless plane")


def _subject_token(text: str) -> str:
    """Return the text, or raise BadSubject if it is not one token. A dot or a wildcard would change the subject."""
    if not matches(REQUEST_ID_PATTERN, text):
        raise BadSubject(f"{text!r} is not one token of a subject; use lower-case letters, digits, '-' and '_'")
    return text
