"""Builds and parses the NATS subjects of the serverless plane.

The subjects of a function contain its functionID, not the requestID that its author chose. So another function with the
same requestID has other subjects. A function that was deleted and created again also has other subjects.

Subjects of JetStream messages. Streams store these messages:

<prefix>.invoke.<functionID>              runtime-api → activator
<prefix>.dispatch.<functionID>            activator → a worker of the function
<prefix>.result.<functionID>              worker-sidecar, activator → result-store
<prefix>.dlq.<source>.<functionID>        any consumer that dead-letters a message

Subjects of core NATS messages. No stream stores these messages:

<prefix>.events.<functionID>.<podUID>     worker-sidecar → activator
<prefix>.demand.<functionID>              activator → leading activator: an invocation was dispatched
<prefix>.cancel.<functionID>              runtime-api → worker-sidecar, activator: an invocationID
<prefix>.reply.<functionID>.<replica>.<token>  worker-sidecar, activator → the runtime-api that waits for a result
<prefix>.control.<podUID>                activator → one worker, request/reply
<prefix>.query.<name>                    runtime-api → result-store, request/reply
<prefix>.state.<invocationID>            republished changes of the key-value bucket
"""

from dataclasses import dataclass
from enum import StrEnum

from gpu_runtime.contract.crd.well_known import FUNCTION_ID_PATTERN
from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.validation.values import matches

DEFAULT_SUBJECT_PREFIX = "runtime.serverless"
RANDOM_PART_PATTERN = "^[0-9a-f]{32}$"
"""128 random bits in hexadecimal digits."""
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
REPLY = "reply"
STATE = "state"
WILDCARD = "*"


class BadSubject(Rejected):
    code = "bad_subject"


@dataclass(frozen=True)
class ParsedSubject:
    """The parts of a subject."""

    kind: str
    function_id: str
    source: Stream | None = None
    """For dead letters: the stream that contained the original message."""
    pod_uid: str = ""
    """For worker events: the pod of the sender."""


@dataclass(frozen=True)
class Subjects:
    prefix: str = DEFAULT_SUBJECT_PREFIX

    def __post_init__(self) -> None:
        if not matches(SUBJECT_PREFIX_PATTERN, self.prefix):
            text = f"prefix is {self.prefix!r}; use parts of letters, digits, '-' and '_', separated by dots"
            raise BadSubject(text)

    def stream_subject(self, stream: Stream, function_id: str) -> str:
        return f"{self.prefix}.{stream}.{_subject_token(function_id)}"

    def invoke(self, function_id: str) -> str:
        return self.stream_subject(Stream.INVOKE, function_id)

    def dispatch(self, function_id: str) -> str:
        return self.stream_subject(Stream.DISPATCH, function_id)

    def result(self, function_id: str) -> str:
        return self.stream_subject(Stream.RESULT, function_id)

    def dead_letter(self, source: Stream, function_id: str) -> str:
        return f"{self.prefix}.{DEAD_LETTERS}.{source}.{_subject_token(function_id)}"

    def events(self, function_id: str, pod_uid: str) -> str:
        return f"{self.prefix}.{EVENTS}.{_subject_token(function_id)}.{_subject_token(pod_uid)}"

    def demand(self, function_id: str) -> str:
        return f"{self.prefix}.{DEMAND}.{_subject_token(function_id)}"

    def cancel(self, function_id: str) -> str:
        return f"{self.prefix}.{CANCEL}.{_subject_token(function_id)}"

    def reply(self, function_id: str, replica: str, token: str) -> str:
        """The subject on which a replica of the API waits for the result of one invocation. The token is random."""
        return f"{self.prefix}.{REPLY}.{_subject_token(function_id)}.{_subject_token(replica)}.{_subject_token(token)}"

    def replies(self, replica: str) -> str:
        """All subjects on which a replica of the API waits for results."""
        return f"{self.prefix}.{REPLY}.{WILDCARD}.{_subject_token(replica)}.{WILDCARD}"

    def is_reply(self, subject: str, function_id: str) -> bool:
        """Whether a result of the function may be sent to this subject.

        Without this check, a reply subject in a message could make the sender publish on any subject.
        """
        match subject.removeprefix(f"{self.prefix}.").split("."):
            case ["reply", str(function), str(replica), str(token)]:
                is_random = matches(RANDOM_PART_PATTERN, replica) and matches(RANDOM_PART_PATTERN, token)
                return function == function_id and is_random and subject == self.reply(function, replica, token)
        return False

    def control(self, pod_uid: str) -> str:
        """The control subject of one worker, identified by the UID of its pod."""
        return f"{self.prefix}.{CONTROL}.{_subject_token(pod_uid)}"

    def query(self, name: str) -> str:
        return f"{self.prefix}.{QUERY}.{_subject_token(name)}"

    def all_functions(self, kind: str) -> str:
        """All subjects of this kind: the name of a stream, DEMAND or CANCEL. Each subject is for a function."""
        return f"{self.prefix}.{kind}.{WILDCARD}"

    @property
    def all_events(self) -> str:
        return f"{self.prefix}.{EVENTS}.{WILDCARD}.{WILDCARD}"

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
            case [Stream.INVOKE | Stream.DISPATCH | Stream.RESULT as kind, function_id]:
                return ParsedSubject(kind, _subject_token(function_id))
            case ["events", function_id, pod_uid]:
                return ParsedSubject(EVENTS, _subject_token(function_id), pod_uid=_subject_token(pod_uid))
            case ["dlq", Stream.INVOKE | Stream.DISPATCH | Stream.RESULT as source, function_id]:
                return ParsedSubject(DEAD_LETTERS, _subject_token(function_id), Stream(source))
        raise BadSubject(f"{subject!r} is not a subject of the serverless plane")


def _subject_token(text: str) -> str:
    """Return the text, or raise BadSubject if it is not one token. A dot or a wildcard would change the subject."""
    if not matches(FUNCTION_ID_PATTERN, text):
        raise BadSubject(f"{text!r} is not one token of a subject; use lower-case letters, digits, '-' and '_'")
    return text
