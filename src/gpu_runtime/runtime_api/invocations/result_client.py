"""The results of invocations, as the result store answers for them."""

from dataclasses import dataclass

from gpu_runtime.contract.errors import Invalid, Unavailable
from gpu_runtime.contract.messages.message_codec import M, Message, Unreadable, decode, encode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.result_query import (
    RESULT,
    RESULTS,
    FindResult,
    FoundResult,
    ListedResults,
    ListResults,
)
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.validation.field_error import Problem
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.errors import NoResponders, StreamError
from gpu_runtime.jetstream.request_reply import ask


@dataclass(frozen=True)
class Results:
    connection: Connection
    subjects: Subjects
    within: float

    async def find(self, invocation_id: str) -> Result | None:
        """The result; None where none is stored. Unavailable where the store is away."""
        found = await self._ask(RESULT, FindResult(invocation_id=invocation_id), FoundResult)
        if found.problem:
            raise Unavailable(f"the result store cannot give the result of {invocation_id}: {found.problem}")
        return found.result

    async def list(self, question: ListResults) -> ListedResults:
        listed = await self._ask(RESULTS, question, ListedResults)
        if listed.problem and question.after:
            raise Invalid([Problem("continue", listed.problem)])
        if listed.problem:
            raise Unavailable(f"the result store cannot list results: {listed.problem}")
        return listed

    async def _ask(self, what: str, question: Message, model: type[M]) -> M:
        try:
            answer = await ask(self.connection, self.subjects.query(what), encode(question), self.within)
            return decode(answer, model)
        except NoResponders as error:
            raise Unavailable("the result store is away", retry_after=2) from error
        except (StreamError, Unreadable) as error:
            raise Unavailable(f"the result store does not answer: {error}", retry_after=2) from error
