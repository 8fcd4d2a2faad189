"""Client of the runtime API: creates workers from stock, and returns the stock of retired workers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gpu_runtime.activator.settings import RuntimeAPIClientSettings
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.errors import NoStock, Rejected, RuntimeFault, TooManyWaiting, Unavailable, conflict_from
from gpu_runtime.contract.messages.message_codec import JSON_DECODE_ERRORS

WORKERS_PATH = "/api/v1/workers"
STOCK_RETURNS_PATH = "/api/v1/operator/stock-returns"


class _ErrorBody(msgspec.Struct):
    code: str = ""
    message: str = ""


class _CreatedUnit(msgspec.Struct):
    uid: str


class _UnitEnvelope(msgspec.Struct):
    data: _CreatedUnit


class _ErrorEnvelope(msgspec.Struct):
    error: _ErrorBody = msgspec.field(default_factory=_ErrorBody)


@dataclass(frozen=True)
class RuntimeAPIClient:
    session: aiohttp.ClientSession
    settings: RuntimeAPIClientSettings

    async def create_unit(self, operation_id: str, worker: GPUUnit) -> str:
        """Create a worker from stock and return its UID. Raise NoStock if no stock unit is available.

        The call is idempotent: repeated calls with the same operationID create only one worker.
        """
        spec = worker.spec
        body = {
            "operationID": operation_id,
            "name": worker.metadata.name,
            "namespace": worker.metadata.namespace,
            "specName": spec.spec_name,
            "image": spec.image,
            "template": msgspec.to_builtins(spec.template),
            "serverless": msgspec.to_builtins(spec.serverless),
        }
        optional = {"access": spec.access, "probes": spec.probes}
        body |= {name: msgspec.to_builtins(value) for name, value in optional.items() if value is not None}
        return _unit_uid(await self._post(WORKERS_PATH, body))

    async def return_to_stock(self, operation_id: str, worker: GPUUnit) -> None:
        """Return the stock of the worker, which the operation created. The runtime API deletes the worker.

        Raise NoStockToReturn if the operation does not prove that the worker was created from a stock unit. The call is
        idempotent: the stock of a worker is returned only once.
        """
        await self._post(STOCK_RETURNS_PATH, {"operationID": operation_id, "unitUID": worker.metadata.uid})

    async def _post(self, path: str, body: dict[str, Any]) -> bytes:
        timeout = aiohttp.ClientTimeout(total=self.settings.request_timeout_seconds)
        headers = {"Content-Type": "application/json", **self._authorization()}
        try:
            async with self.session.post(
                self.settings.url.rstrip("/") + path, data=msgspec.json.encode(body), headers=headers, timeout=timeout
            ) as response:
                content = await response.read()
                if response.status >= 300:
                    raise fault_from_response(response.status, content)
                return content
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"the runtime API did not respond: {error or type(error).__name__}") from error

    def _authorization(self) -> dict[str, str]:
        if not self.settings.token_file:
            return {}
        try:
            token = Path(self.settings.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise Unavailable(f"{self.settings.token_file} cannot be read: {error.strerror}") from error
        return {"Authorization": f"Bearer {token}"}


def _unit_uid(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_UnitEnvelope).data.uid
    except JSON_DECODE_ERRORS as error:
        raise Unavailable(f"the response of the runtime API does not contain the UID of the unit: {error}") from error


def fault_from_response(status: int, body: bytes) -> RuntimeFault:
    """Return the fault for an error response of the runtime API."""
    try:
        error = msgspec.json.decode(body, type=_ErrorEnvelope).error
    except JSON_DECODE_ERRORS:
        error = _ErrorBody(message=body[:200].decode(errors="replace"))
    message = f"the runtime API responded with status {status}: {error.message}"
    if error.code == TooManyWaiting.code:  # the runtime API has found no stock
        return NoStock(message)
    if status in (429, 503, 504) or status >= 500:
        return Unavailable(message)
    return conflict_from(error.code, message) if status == 409 else Rejected(message)
