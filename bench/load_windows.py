"""Alternates undisturbed and disturbed windows, so that other load on the machine affects both in the same way.

The load generators are separate processes. They get the windows in advance and share the monotonic clock.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from localcluster.paths import PROJECT_ROOT

PROCESS_START_SECONDS = 4.0
"""The time from the schedule until the first window. The load generators start in this time."""
PAUSE_SECONDS = 0.5
"""The time between two windows. The requests of the first window finish in this time."""

T = TypeVar("T", bound=msgspec.Struct)


class Window(msgspec.Struct, frozen=True):
    """Times are in seconds of the monotonic clock."""

    kind: str
    starts_at: float
    ends_at: float
    url: str
    """The URL of the API that the measured caller uses in this window."""

    @property
    def seconds(self) -> float:
        return self.ends_at - self.starts_at


class RequestTemplate(msgspec.Struct, frozen=True):
    """A request that is sent many times. In its path and its body, `@N@` becomes a number that is never repeated."""

    name: str
    method: str
    path: str
    body: str = ""

    def path_of(self, number: int) -> str:
        return self.path.replace("@N@", str(number))

    def body_of(self, number: int) -> bytes:
        return self.body.replace("@N@", str(number)).encode()


def call_template(invocation_id: str, function: str, payload: object, mode: str) -> RequestTemplate:
    """Return a request that invokes the function. Its name is the mode."""
    body = {"invocationID": invocation_id, "serverlessRequestID": function, "payload": payload, "mode": mode}
    return RequestTemplate(mode, "POST", "/api/v1/serverless/invocations", json.dumps(body | {"timeoutSeconds": 300}))


def create_template(name: str, flavor: str) -> RequestTemplate:
    """Return a request that creates a unit from stock of this flavor."""
    body = {"operationID": f"create-{name}", "name": name, "specName": flavor, "image": "python:3.12"}
    return RequestTemplate("create", "POST", "/api/v1/gpu-units", json.dumps(body))


def mirrored_windows(kinds: Sequence[tuple[str, str]], rounds: int, seconds: float) -> list[Window]:
    """Return windows of these kinds and URLs. Each round has all kinds in order, and then in reverse order (ABBA)."""
    order = [*kinds, *reversed(kinds)] * rounds
    start = time.monotonic() + PROCESS_START_SECONDS
    return [
        Window(kind, begin, begin + seconds, url)
        for index, (kind, url) in enumerate(order)
        for begin in [start + index * (seconds + PAUSE_SECONDS)]
    ]


async def sleep_until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - time.monotonic()))


async def run_generator(module: str, job: msgspec.Struct, result: type[T], folder: Path, name: str) -> T:
    """Run `python -m MODULE` with this job on its stdin, and return the result from its stdout."""
    job_path, result_path = folder / f"{name}-job.json", folder / f"{name}-result.json"
    job_path.write_bytes(msgspec.json.encode(job))
    with job_path.open("rb") as stdin, result_path.open("wb") as stdout:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, stdin=stdin, stdout=stdout, cwd=PROJECT_ROOT
        )
        try:
            if await process.wait():
                raise RuntimeError(f"the load generator {name} failed")
        finally:
            if process.returncode is None:
                process.kill()
    return msgspec.json.decode(result_path.read_bytes(), type=result)
