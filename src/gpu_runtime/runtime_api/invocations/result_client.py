"""The results of invocations, as the result store answers for them."""

from dataclasses import dataclass

from gpu_runtime.contract.errors import Invalid, Unavailable
from gpu_runtime.contract.messages.message_codec import M, Message, MessageDecodeError, decode, encode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.result_query import (
    RESULT_QUERY,
    RESULTS_QUERY,
    GetResultRequest,
    GetResultResponse,
    ListResultsRequest,
    ListResultsResponse,
)
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError, NoResponders
from gpu_runtime.jetstream.request_reply import send_request


@dataclass(frozen=True)
class ResultClient:
    connection: NatsConnection
    subjects: Subjects
    timeout_seconds: float

    async def find(self, invocation_id: str) -> Result | None:
        """The result; None where none is stored. Unavailable where the store is away."""
        found = await self._query(RESULT_QUERY, GetResultRequest(invocation_id=invocation_id), GetResultResponse)
        if found.error:
            raise Unavailable(f"the result store cannot give the result of {invocation_id}: {found.error}")
        return found.result

    async def list(self, question: ListResultsRequest) -> ListResultsResponse:
        listed = await self._query(RESULTS_QUERY, question, ListResultsResponse)
        if listed.error and question.continue_token:
            raise Invalid([FieldError("continue", listed.error)])
        if listed.error:
            raise Unavailable(f"the result store cannot list results: {listed.error}")
        return listed

    async def _query(self, what: str, question: Message, model: type[M]) -> M:
        try:
            answer = await send_request(
                self.connection, self.subjects.query(what), encode(question), self.timeout_seconds
            )
            return decode(answer, model)
        except NoResponders as error:
            raise Unavailable("the result store is away", retry_after=2) from error
        except (JetStreamError, MessageDecodeError) as error:
            raise Unavailable(f"the result store does not answer: {error}", retry_after=2) from error
