"""Queries the result store for the results of invocations."""

from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.contract.errors import Invalid, Unavailable
from gpu_runtime.contract.messages.message_codec import M, Message, MessageDecodeError, decode, encode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.result_query import (
    RESULT_COUNT_QUERY,
    RESULT_QUERY,
    RESULTS_QUERY,
    CountResultsRequest,
    CountResultsResponse,
    GetResultRequest,
    GetResultResponse,
    ListResultsRequest,
    ListResultsResponse,
)
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError, NoResponders


@dataclass(frozen=True)
class ResultClient:
    connection: NatsConnection
    subjects: Subjects
    timeout_seconds: float
    """Maximum time to wait for a response of the result store, in seconds."""

    async def find(self, invocation_id: str) -> Result | None:
        """Return the result, or None if none is stored. Raises Unavailable if the result store does not respond."""
        response = await self._query(RESULT_QUERY, GetResultRequest(invocation_id=invocation_id), GetResultResponse)
        if response.error:
            raise Unavailable(f"the result store cannot read the result of {invocation_id}: {response.error}")
        return response.result

    async def list(self, request: ListResultsRequest) -> ListResultsResponse:
        response = await self._query(RESULTS_QUERY, request, ListResultsResponse)
        if response.error and request.continue_token:
            raise Invalid([FieldError("continue", response.error)])
        if response.error:
            raise Unavailable(f"the result store cannot list results: {response.error}")
        return response

    async def count(self, serverless_request_id: str, since: datetime) -> int:
        """Return how many results of the function were stored since this time, including evicted results."""
        request = CountResultsRequest(serverless_request_id=serverless_request_id, since=since)
        response = await self._query(RESULT_COUNT_QUERY, request, CountResultsResponse)
        if response.error:
            raise Unavailable(f"the result store cannot count results: {response.error}")
        return response.count

    async def _query(self, query: str, request: Message, model: type[M]) -> M:
        try:
            subject, timeout_seconds = self.subjects.query(query), self.timeout_seconds
            reply = await self.connection.request(subject, encode(request), timeout_seconds=timeout_seconds)
            return decode(reply.data, model)
        except NoResponders as error:
            raise Unavailable("the result store is not running", retry_after=2) from error
        except (JetStreamError, MessageDecodeError) as error:
            raise Unavailable(f"the result store does not respond: {error}", retry_after=2) from error
