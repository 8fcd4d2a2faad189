"""The private parts and error texts of libraries that the product uses still exist.

A test that fails here after an upgrade names the code that depends on the changed part. Check that code, and adapt it
before the pin in pyproject.toml is raised.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
import msgspec
import pytest
from aiohttp.connector import Connection
from aiohttp.payload import BytesPayload
from aiohttp.web_protocol import RequestHandler
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

import gpu_runtime
from gpu_runtime.jetstream.client_session import _NatsClient
from gpu_runtime.kube import transport
from gpu_runtime.process.bounded_http import BoundedRequestHandler

SOURCE = Path(gpu_runtime.__file__).parent
SESSION = "src/gpu_runtime/jetstream/client_session.py"
TRANSPORT = "src/gpu_runtime/kube/transport.py"
CONNECTION = "src/gpu_runtime/process/bounded_http.py"

OWN_NAMES = ["_close_after_socket_error", "_write_handle", "_write_pending", "closed", "require_tls", "wait_writable"]
"""The attributes that the session adds to the client of nats-py."""


def names_of_self(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a class reads, writes or calls on itself or on its base class."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self") | ast.Call(func=ast.Name(id="super")), attr=name):
                if name.startswith("_") and not name.startswith("__"):
                    yield name


SESSION_CLASS = ast.parse(inspect.getsource(_NatsClient))
USED_NAMES = sorted(set(names_of_self(SESSION_CLASS)) - set(OWN_NAMES))
OVERRIDES = sorted(name for name in vars(_NatsClient) if name in vars(Client) and not name.startswith("__"))


@pytest.mark.parametrize("name", USED_NAMES)
async def test_private_name_of_nats_exists(name: str) -> None:
    assert hasattr(Client(), name), (
        f"nats-py {version('nats-py')} has no Client.{name}: {SESSION} uses it in _NatsClient; check every use there"
    )


@pytest.mark.parametrize("name", OVERRIDES)
def test_overridden_method_of_nats_has_the_same_parameters(name: str) -> None:
    theirs, ours = (list(inspect.signature(getattr(each, name)).parameters) for each in (Client, _NatsClient))
    assert theirs == ours, (
        f"nats-py {version('nats-py')} calls Client.{name} with {theirs}: adapt the override with {ours} in {SESSION}"
    )


def test_all_names_of_the_session_are_listed_here() -> None:
    init = next(
        node for node in ast.walk(SESSION_CLASS) if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    targets = (
        node.targets if isinstance(node, ast.Assign) else [node.target]
        for node in ast.walk(init)
        if isinstance(node, ast.Assign | ast.AnnAssign)
    )
    assigned = {each.attr for target in targets for each in target if isinstance(each, ast.Attribute)}
    methods = {name for name in vars(_NatsClient) if not name.startswith("__") and name not in OVERRIDES}
    assert assigned | methods == set(OWN_NAMES), "add the new attribute of _NatsClient to OWN_NAMES"


@pytest.mark.parametrize("name", OWN_NAMES)
async def test_name_of_the_session_is_free_in_nats(name: str) -> None:
    assert not hasattr(Client(), name), (
        f"nats-py {version('nats-py')} now has Client.{name} itself: rename the attribute of _NatsClient in {SESSION}"
    )


async def test_subscription_and_transport_of_nats_have_the_private_parts_that_the_session_uses() -> None:
    assert hasattr(Subscription(Client()), "_cb"), (
        f"nats-py {version('nats-py')} has no Subscription._cb: check _NatsClient._process_msg in {SESSION}"
    )
    connection = TcpTransport()  # type: ignore[no-untyped-call]
    assert hasattr(connection, "_io_writer"), (
        f"nats-py {version('nats-py')} has no TcpTransport._io_writer: check _NatsClient._close in {SESSION}"
    )


CONNECTION_CLASS = ast.parse(inspect.getsource(BoundedRequestHandler))
OWN_CONNECTION_NAMES = {
    *("_connections", "_head_timer", "_stall_timer", "_start_head_timer", "_stop_head_timer", "_stop_stall_timer")
}


def test_connection_of_aiohttp_has_the_private_parts_that_the_bounded_connection_uses() -> None:
    used = set(names_of_self(CONNECTION_CLASS)) - OWN_CONNECTION_NAMES
    slots = {name for base in RequestHandler.__mro__ for name in getattr(base, "__slots__", ())}
    assert used <= slots, f"aiohttp {version('aiohttp')} has no RequestHandler.{used - slots}: check {CONNECTION}"
    assert not slots & OWN_CONNECTION_NAMES, f"aiohttp {version('aiohttp')} uses names of {CONNECTION}: rename them"


@pytest.mark.parametrize(
    "name",
    ["connection_made", "connection_lost", "data_received", "finish_response", "pause_writing", "resume_writing"],
)
def test_overridden_method_of_a_connection_has_the_same_parameters(name: str) -> None:
    theirs, ours = (
        list(inspect.signature(getattr(each, name)).parameters) for each in (RequestHandler, BoundedRequestHandler)
    )
    assert theirs == ours, (
        f"aiohttp {version('aiohttp')} calls {name} with {theirs}: adapt the override in {CONNECTION}"
    )


def test_connector_of_aiohttp_is_called_with_the_same_parameters() -> None:
    theirs, ours = (
        list(inspect.signature(each.connect).parameters) for each in (aiohttp.TCPConnector, transport._Connector)
    )
    assert theirs == ours, (
        f"aiohttp {version('aiohttp')} calls TCPConnector.connect with {theirs}: adapt _Connector in {TRANSPORT}"
    )
    assert hasattr(Connection, "transport"), (
        f"aiohttp {version('aiohttp')} has no Connection.transport: check _RoundTrip.on_connected in {TRANSPORT}"
    )


def test_request_body_of_aiohttp_is_written_with_the_same_method() -> None:
    theirs, ours = (
        list(inspect.signature(each.write_with_length).parameters) for each in (BytesPayload, transport._FencedBody)
    )
    assert theirs == ours, (
        f"aiohttp {version('aiohttp')} writes bodies with {theirs}: adapt _FencedBody in {TRANSPORT}, or the fence of a"
        " leader is not checked before the body is written"
    )
    writer = inspect.getsource(aiohttp.ClientRequest)
    assert "write_with_length" in writer, (
        f"aiohttp {version('aiohttp')} no longer calls write_with_length for a request body: check _FencedBody in"
        f" {TRANSPORT}"
    )


def test_timeouts_of_aiohttp_are_rounded_only_above_the_threshold() -> None:
    assert aiohttp.ClientTimeout(ceil_threshold=3600.0).ceil_threshold == 3600.0, (
        f"aiohttp {version('aiohttp')} has no ceil_threshold: check _CEIL_THRESHOLD_SECONDS in {TRANSPORT}"
    )


class Inner(msgspec.Struct):
    size: Annotated[int, msgspec.Meta(ge=1)] = 1
    protocol: Literal["TCP", "UDP"] = "TCP"


class Outer(msgspec.Struct):
    name: str
    inner: tuple[Inner, ...] = ()
    limit: int | None = None
    labels: dict[Annotated[str, msgspec.Meta(max_length=1)], str] = {}


DECODING = "src/gpu_runtime/runtime_api/http/decoding.py"
SETTINGS = "src/gpu_runtime/process/settings.py"
BOTH = f"{DECODING} (_problem_from_validation_error) and {SETTINGS} (_format_validation_error)"

ERROR_TEXTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "type and path": (
        lambda: msgspec.convert({"name": "a", "inner": [{"size": "x"}]}, Outer),
        "Expected `int`, got `str` - at `$.inner[0].size`",
        BOTH,
    ),
    "type at the top": (lambda: msgspec.convert([], Outer), "Expected `object`, got `array`", BOTH),
    "several types": (
        lambda: msgspec.convert({"name": "a", "limit": "x"}, Outer),
        "Expected `int | null`, got `str` - at `$.limit`",
        f"{DECODING} (_describe_types)",
    ),
    "constraint": (
        lambda: msgspec.convert({"name": "a", "inner": [{"size": 0}]}, Outer),
        "Expected `int` >= 1 - at `$.inner[0].size`",
        BOTH,
    ),
    "choice": (
        lambda: msgspec.convert({"name": "a", "inner": [{"protocol": "X"}]}, Outer),
        "Invalid enum value 'X' - at `$.inner[0].protocol`",
        BOTH,
    ),
    "missing field": (
        lambda: msgspec.convert({}, Outer),
        "Object missing required field `name`",
        f"{DECODING} (_decode_model) and {SETTINGS} (_format_validation_error)",
    ),
    "key of a mapping": (
        lambda: msgspec.convert({"name": "a", "labels": {"long": "x"}}, Outer),
        "Expected `str` of length <= 1 - at `key` in `$.labels`",
        f"{DECODING} (_problem_from_validation_error)",
    ),
    "malformed JSON": (
        lambda: msgspec.json.decode(b"{x"),
        "JSON is malformed: object keys must be strings (byte 1)",
        f"{DECODING} (_parse_json)",
    ),
    "truncated JSON": (lambda: msgspec.json.decode(b"{"), "Input data was truncated", f"{DECODING} (_parse_json)"),
}


@pytest.mark.parametrize(("decode", "expected", "place"), ERROR_TEXTS.values(), ids=ERROR_TEXTS)
def test_error_text_of_msgspec_is_unchanged(decode: Callable[[], Any], expected: str, place: str) -> None:
    with pytest.raises(msgspec.DecodeError) as raised:
        decode()
    assert str(raised.value) == expected, (
        f"msgspec {version('msgspec')} changed an error text: check the code that parses it in {place}"
    )


def foreign_private_names(path: Path) -> Iterator[str]:
    """Yield the private names that a module uses on an object that is neither `self` nor its own class."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
                pass
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                yield f"{path.relative_to(SOURCE)}: {name}"


def test_every_use_of_a_private_name_has_a_canary() -> None:
    covered = {
        "jetstream/client_session.py: _cb",
        "jetstream/client_session.py: _io_writer",
    }
    used = {each for path in SOURCE.rglob("*.py") for each in foreign_private_names(path)}
    assert used == covered, "add a canary test for each new private name of a library"
