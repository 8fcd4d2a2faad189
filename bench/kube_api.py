"""Counts the requests of an API server from its audit log and metrics, and provides a minimal Kubernetes client."""

import asyncio
import ssl
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
import yaml
from prometheus_client.parser import text_string_to_metric_families

from localcluster.control_plane import ControlPlane

T = TypeVar("T")
WRITE_VERBS = {"create", "update", "patch", "delete", "deletecollection"}
AUDIT_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "APPLY": "patch", "DELETE": "delete"}

RequestCounts = Counter[tuple[str, str]]
"""The number of requests, by verb and by resource with its subresource."""


class AuditLog:
    """The audit log of an API server. It contains only the requests of one user, at the level Metadata."""

    def __init__(self, folder: Path, user: str) -> None:
        self._path = folder / "audit.log"
        self._policy = folder / "audit-policy.yaml"
        rules = [{"level": "Metadata", "users": [user]}, {"level": "None"}]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
        self._policy.write_text(yaml.safe_dump(policy))
        self._offset = 0

    @property
    def apiserver_flags(self) -> dict[str, object]:
        return {"audit-policy-file": self._policy, "audit-log-path": self._path, "audit-log-maxsize": 1000}

    def read_new(self) -> RequestCounts:
        """Return the finished requests since the previous call."""
        if not self._path.exists():
            return Counter()
        with self._path.open("rb") as log:
            log.seek(self._offset)
            text = log.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        entries = (_AUDIT_EVENT_DECODER.decode(line) for line in complete.splitlines())
        return Counter((each.verb, each.resource) for each in entries if each.stage == "ResponseComplete")


class _ObjectReference(msgspec.Struct, frozen=True):
    resource: str = ""
    subresource: str = ""


class _AuditEvent(msgspec.Struct, rename="camel"):
    verb: str
    stage: str
    request_uri: str = msgspec.field(default="", name="requestURI")
    object_ref: _ObjectReference = _ObjectReference()

    @property
    def resource(self) -> str:
        """The resource with its subresource. For a list request, also its query string."""
        name = "/".join(filter(None, (self.object_ref.resource, self.object_ref.subresource)))
        return f"{name}?{self.request_uri.partition('?')[2]}" if self.verb == "list" else name


_AUDIT_EVENT_DECODER = msgspec.json.Decoder(_AuditEvent)


def select_writes(requests: RequestCounts) -> RequestCounts:
    """Return the writes without those of Events and Leases."""
    return Counter(
        {key: n for key, n in requests.items() if key[0] in WRITE_VERBS and key[1] not in ("events", "leases")}
    )


def counts_by_name(requests: RequestCounts) -> dict[str, int]:
    """Return the counts with string keys, for JSON."""
    return {f"{verb} {resource}": number for (verb, resource), number in sorted(requests.items())}


def writes_from_metrics(plane: ControlPlane, kinds: Collection[tuple[str, str]]) -> RequestCounts:
    """Return the writes of all users to these resources and subresources since the start of the API server."""
    request = urllib.request.Request(f"{plane.url}/metrics")  # noqa: S310 - https
    with urllib.request.urlopen(request, timeout=30, context=admin_access(plane).ssl_context()) as response:  # noqa: S310
        text = "\n".join(line for line in response.read().decode().splitlines() if "apiserver_request_total" in line)
    counts: RequestCounts = Counter()
    for family in text_string_to_metric_families(text + "\n"):
        for sample in family.samples:
            resource, subresource = sample.labels["resource"], sample.labels["subresource"]
            verb = AUDIT_VERBS.get(sample.labels["verb"])
            if verb and (resource, subresource) in kinds:
                counts[verb, "/".join(filter(None, (resource, subresource)))] += int(sample.value)
    return counts


class RawKubeClient:
    """A minimal Kubernetes client: one session, no retries, no leader fencing, no models."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def get(self, path: str) -> Any:
        async with self.session.get(self.url + path) as response:
            return msgspec.json.decode(await response.read())

    async def create(self, path: str, manifest: Mapping[str, Any]) -> Any:
        return await self._write("POST", path, manifest, "application/json")

    async def patch(self, path: str, patch: Mapping[str, Any]) -> Any:
        return await self._write("PATCH", path, patch, "application/merge-patch+json")

    async def delete(self, path: str, options: Mapping[str, Any]) -> None:
        await self._write("DELETE", path, options, "application/json")

    async def _write(self, method: str, path: str, body: Mapping[str, Any], content_type: str) -> Any:
        data, headers = msgspec.json.encode(body), {"Content-Type": content_type}
        async with self.session.request(method, self.url + path, data=data, headers=headers) as response:
            text = await response.read()
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {text.decode()}")
            return msgspec.json.decode(text)


class KubeAccess(msgspec.Struct, frozen=True):
    """The address of an API server and the credentials of a user. It can be serialized for another process."""

    url: str
    ca_file: str
    cert_file: str = ""
    key_file: str = ""
    token: str = ""
    """A bearer token. It replaces the client certificate."""

    def ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def write_kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig with the token, which is what a process has in its pod.

        With a certificate the costs would differ, because the API server verifies it for every request.
        """
        cluster = {"server": self.url, "certificate-authority": self.ca_file}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": "bench", "user": {"token": self.token}}],
        }
        path = folder / "token.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path


def admin_access(plane: ControlPlane) -> KubeAccess:
    admin = plane.authority.issue("admin", "admin", ["system:masters"])
    return KubeAccess(plane.url, str(plane.authority.certificate), str(admin.certificate), str(admin.key))


def service_account_access(plane: ControlPlane, name: str) -> KubeAccess:
    """Return the access of a process of the platform, with the rights of its own service account."""
    token = plane.kubectl("create", "token", name, "--namespace=runtime-system", "--duration=4h").strip()
    return KubeAccess(plane.url, str(plane.authority.certificate), token=token)


@asynccontextmanager
async def raw_kube_client(access: KubeAccess) -> AsyncIterator[RawKubeClient]:
    connector = aiohttp.TCPConnector(ssl=access.ssl_context(), limit=128)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=access.headers()) as session:
        yield RawKubeClient(session, access.url)


async def for_each_concurrently(count: int, items: Iterable[T], work: Callable[[T], Awaitable[object]]) -> None:
    remaining = iter(items)

    async def worker() -> None:
        for item in remaining:
            await work(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(worker())
