"""Strategies for unusual values and for mutations of valid documents and bytes."""

import copy
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

UNUSUAL_TEXTS = (
    "",
    " ",
    "\0",
    "\n",
    "\r\n",
    "\t",
    "..",
    "/",
    "//",
    "/..",
    "-",
    "_",
    "0",
    "-1",
    "null",
    "true",
    "NaN",
    "1e400",
    "9" * 400,
    "a" * 63,
    "a" * 64,
    "a" * 254,
    "ä",
    "🚀",
    "\u202e",
    "\ufeff",
    "\x7f",
    "$(HOME)",
    "${jndi:x}",
    "{{x}}",
    "%s%n",
    "%00",
    "*",
    ">",
    "a.b",
    "A",
    "a--b",
    "1.5Gi",
    "16m",
    "0x10",
    "1e-3",
    "2001-99-99",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2026-01-01T00:00:00Z",
)
UNUSUAL_NUMBERS = (
    0,
    1,
    -1,
    2**31 - 1,
    2**31,
    -(2**31),
    2**53,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    0.5,
    -0.0,
    1e300,
    5e-324,
)
BYTE_FRAGMENTS = (
    *(b"\r\n", b"\r", b"\n", b"\0", b" ", b":", b"\t", b"0", b"-1", b"\xff", b"\xed\xa0\x80", b"chunked", b"{", b"}"),
    *(b"[", b"]", b'"', b",", b"null", b"1e999", b"\\u0000", b"\\ud800", b"Content-Length: 3\r\n", b"9" * 40),
)


@cache  # creating a strategy for every case costs more than the case itself
def texts(alphabet: str | None = None, max_size: int = 40) -> SearchStrategy[str]:
    """Text of this alphabet, or of any characters if it is None, or one of the unusual texts."""
    free = st.text(alphabet, max_size=max_size) if alphabet else st.text(max_size=max_size)
    return st.one_of(free, st.sampled_from(UNUSUAL_TEXTS))


@cache
def scalars() -> SearchStrategy[Any]:
    numbers = st.one_of(
        st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(UNUSUAL_NUMBERS)
    )
    return st.one_of(st.none(), st.booleans(), numbers, texts())


@cache
def json_values() -> SearchStrategy[Any]:
    return st.recursive(
        scalars(),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts(), inner, max_size=4)),
        max_leaves=8,
    )


def deeply_nested() -> SearchStrategy[bytes]:
    """JSON that is nested so deeply that recursive code reaches its limit."""
    pairs = st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")])
    depths = st.sampled_from([100, 1_000, 5_000])
    return st.builds(
        lambda pair, depth, closed: pair[0] * depth + b"0" + pair[1] * depth * closed, pairs, depths, st.booleans()
    )


EDITS = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from([0, 0, 1, 2, 8, 40]),
        st.one_of(st.none(), st.sampled_from(BYTE_FRAGMENTS), st.binary(max_size=4)),
    ),
    min_size=1,
    max_size=5,
)
"""The relative position, the number of replaced bytes, and the replacement; None repeats the bytes."""


def mutated_bytes(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    """One of the seeds with a few bytes removed, repeated or replaced."""
    return st.builds(_apply_edits, st.sampled_from(list(seeds)), EDITS)


def _apply_edits(data: bytes, edits: Sequence[tuple[float, int, bytes | None]]) -> bytes:
    edited = bytearray(data)
    for position, length, replacement in edits:
        start = round(position * len(edited))
        end = min(len(edited), start + length)
        edited[start:end] = bytes(edited[start:end]) * 2 if replacement is None else replacement
    return bytes(edited)


ABSENT = object()
CHANGES = st.lists(
    st.tuples(st.integers(0, 50), st.one_of(st.just(ABSENT), json_values()), st.one_of(st.none(), texts(max_size=8))),
    max_size=4,
)
"""The index of a field, its new value, and its new name; None keeps the name."""


def altered_documents(documents: Sequence[dict[str, Any]]) -> SearchStrategy[dict[str, Any]]:
    """One of the documents with some fields, at any depth, replaced, removed or added."""
    return st.builds(_apply_changes, st.sampled_from(list(documents)), CHANGES)


def _apply_changes(document: dict[str, Any], changes: Sequence[tuple[int, Any, str | None]]) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    for index, value, name in changes:
        fields = list(_fields(changed))
        if not fields:
            break
        part, key = fields[index % len(fields)]
        if value is ABSENT:
            part.pop(key, None)
        else:
            part[key if name is None else name] = value
    return changed


def _fields(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Every field at any depth, with the object that contains it."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield document, key
            yield from _fields(value)
    elif isinstance(document, list):
        for value in document:
            yield from _fields(value)


def message_bytes(documents: Sequence[dict[str, Any]]) -> SearchStrategy[bytes]:
    """Bytes for a decoder that expects one of the documents as JSON."""
    valid = [encode_json(document) for document in documents]
    return st.one_of(
        altered_documents(documents).map(encode_json),
        mutated_bytes(valid),
        json_values().map(encode_json),
        st.binary(max_size=200),
        deeply_nested().map(lambda value: b'{"version":1,"x":' + value + b"}"),
    )


def encode_json(value: Any) -> bytes:
    """The value as JSON, or its `repr` if JSON cannot express it."""
    try:
        return msgspec.json.encode(value)
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return repr(value).encode(errors="replace")
