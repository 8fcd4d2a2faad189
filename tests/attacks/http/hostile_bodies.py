"""Generates request bodies that try to keep the API busy: every shape, for every field of a route, at any size."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from gpu_runtime.contract.model_schema import JSONSchema, object_schema, type_schema
from gpu_runtime.runtime_api.http.route import Body

FieldPath: TypeAlias = tuple[str, ...]
Fragment: TypeAlias = str
"""The JSON text of a value."""

STRING_UNITS = (
    *("a", "Z", "0", "1", "-", ".", "/", "/a", "/./", "//", "a/", ":", " ", "_", "9e9", "0.0", "é", "漢", "😀"),
    *("\\u0000", "\\u00e9", "\\ud835\\udd18", "\\\\", '\\"', "\\n", "\\/", "unit-a.", "a-", "aA", "=", "+"),
)
STRING_ENDS = ("", "x", "!", " ", "-", ".", "/..", "\\u0000", "Gi", "=", "é")
NUMBERS = ("0", "1", "-1", "1.5", "1e5", "9" * 19, "9" * 300, "0." + "1" * 300, "1e-300", "12345678901234567890")
SMALL_VALUES = ("{}", "[]", '""', "0", "null", "true", '"a"', "[[]]", '{"a":{}}', '{"name":"a"}')


def hostile_bodies(model: type[Body], size: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield shapes and bodies of at most this size, without end. The same seed yields the same bodies."""
    rng = random.Random(seed)  # noqa: S311 - not for security
    schema = nested_schema(model)
    fields = list(field_paths(schema))
    while True:
        shape = rng.choice(SHAPES)
        count = rng.choice((1, 1, 1, 2, 4))
        changes = {}
        for _ in range(count):
            path = rng.choice(fields)
            changes[path] = shape(rng, schema_at(schema, path), (size - 600) // count - sum(map(len, path)) - 50)
        document = assemble(required_fields(schema), changes, rng, (size - 600) if shape in KEY_SHAPES else 0)
        raw = document.encode(errors="surrogatepass")[:size]
        if rng.random() < 0.05:
            position = rng.randrange(len(raw))
            raw = raw[:position] + bytes([rng.randrange(256)]) + raw[position + 1 :]
        yield f"{shape.__name__} at {', '.join('.'.join(path) for path in changes)}", raw + b" " * (size - len(raw))


def nested_schema(model: type[msgspec.Struct]) -> JSONSchema:
    return object_schema(model, lambda each: type_schema(each.type, nested_schema))


def field_paths(schema: JSONSchema, at: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the paths of all fields, and of a field that does not exist in each object."""
    for variant in schema.get("anyOf", (schema,)):
        for name, inner in variant.get("properties", {}).items():
            yield (*at, name)
            yield from field_paths(inner, (*at, name))
        if "properties" in variant:
            yield (*at, "unknown")


def schema_at(schema: JSONSchema, path: FieldPath) -> JSONSchema:
    for name in path:
        variants = schema.get("anyOf", (schema,))
        schema = next((each["properties"][name] for each in variants if name in each.get("properties", {})), {})
    return schema


def required_fields(schema: JSONSchema) -> dict[str, Any]:
    return {name: minimal_value(schema["properties"][name]) for name in schema.get("required", ())}


def minimal_value(schema: JSONSchema) -> Any:
    schema = next((each for each in schema.get("anyOf", (schema,)) if each.get("type") != "null"), {})
    match schema.get("type"):
        case "string":
            return schema.get("enum", ["2030-01-31T12:00:00Z" if schema.get("format") == "date-time" else "a1"])[0]
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case "array":
            return []
        case "object":
            return required_fields(schema)
    return None


def assemble(required: dict[str, Any], changes: dict[FieldPath, Fragment], rng: random.Random, key_bytes: int) -> str:
    """Return the JSON of the document with the changed fields, and with extra keys of this size."""
    tree: dict[str, Any] = {name: json.dumps(value) for name, value in required.items()}
    for path, fragment in changes.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {}) if isinstance(node.get(name), dict | None) else node
        node[path[-1]] = fragment
    deepest = max(changes, key=len)[:-1]
    return _dump(tree, deepest if rng.random() < 0.5 else (), extra_keys(rng, required, key_bytes) if key_bytes else "")


def _dump(node: Any, extra_at: FieldPath | None, extra: str) -> str:
    if isinstance(node, str):
        return node
    entries = [
        f"{json.dumps(name)}:{_dump(value, extra_at[1:] if extra_at and extra_at[0] == name else None, extra)}"
        for name, value in node.items()
    ]
    return "{" + ",".join(entries + [extra] * (extra_at == () and bool(extra))) + "}"


def extra_keys(rng: random.Random, known: dict[str, Any], size: int) -> str:
    """Return key-value pairs: distinct, equal, or similar to known names, with or without duplicates."""
    kind = rng.choice(("distinct", "equal", "near", "long"))
    value, names = rng.choice(("0", "{}", '""')), list(known) or ["name"]
    keys: list[str] = []
    length = 0
    while length < size:
        match kind:
            case "distinct":
                key = f"{len(keys):x}"
            case "equal":
                key = "k"
            case "near":
                key = _misspelled(rng, rng.choice(names)) + (f"{len(keys):x}" if rng.random() < 0.8 else "")
            case _:
                key = "k" * 2000 + str(len(keys))
        keys.append(key)
        length += len(key) + len(value) + 4
    if rng.random() < 0.5:
        keys[-1] = keys[0]
    return ",".join(f'"{key}":{value}' for key in keys)


def _misspelled(rng: random.Random, name: str) -> str:
    position = rng.randrange(len(name))
    return name[:position] + rng.choice(("", "x", name[position].swapcase())) + name[position + 1 :]


def long_string(rng: random.Random, _schema: JSONSchema, size: int) -> Fragment:
    unit, end = rng.choice(STRING_UNITS), rng.choice(STRING_ENDS)
    prefix = rng.choice(("", "/", "unit-", "1", "a"))
    return f'"{prefix}{unit * ((size - 20) // len(unit.encode()))}{end}"'


def many_items(rng: random.Random, schema: JSONSchema, size: int) -> Fragment:
    schema = next((each for each in schema.get("anyOf", (schema,)) if each.get("type") == "array"), {})
    item = json.dumps(minimal_value(schema.get("items", {})))
    return _filled_list(rng, rng.choice((item, item, rng.choice(SMALL_VALUES), rng.choice(NUMBERS))), size)


def distinct_items(rng: random.Random, schema: JSONSchema, size: int) -> Fragment:
    """Return a list of valid objects whose strings differ, equal each other, or contain each other."""
    schema = next((each for each in schema.get("anyOf", (schema,)) if each.get("type") == "array"), {})
    value, kind = minimal_value(schema.get("items", {})), rng.choice(("distinct", "equal", "nested", "long"))
    items: list[str] = []
    length = 0
    while length < size and len(items) < 50_000:
        items.append(json.dumps(_renamed(value, len(items), kind)))
        length += len(items[-1]) + 1
    return "[" + ",".join(items[:-1]) + "]"


def _renamed(value: Any, index: int, kind: str) -> Any:
    text = {"distinct": f"a{index}", "equal": "a", "nested": "a/" * (index % 200), "long": "a" * 500 + str(index)}[kind]
    if isinstance(value, dict):
        return {key: _renamed(each, index, kind) for key, each in value.items()}
    if isinstance(value, str):
        return text
    return index % 65535 + 1 if isinstance(value, int) and not isinstance(value, bool) else value


def nested(rng: random.Random, _schema: JSONSchema, size: int) -> Fragment:
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    depth = rng.choice((10, 100, 400, 900, 5000, size))
    depth = min(depth, size // (len(opening) + len(closing)) - 1)
    one = opening * depth + "0" + closing * depth
    return "[" + ",".join([one] * max(1, (size - 2) // (len(one) + 1))) + "]"


def large_object(rng: random.Random, schema: JSONSchema, size: int) -> Fragment:
    return "{" + extra_keys(rng, {"name": ""}, size - 50) + "}"


def number(rng: random.Random, _schema: JSONSchema, size: int) -> Fragment:
    digits = rng.choice((10, 300, 4300, size))
    return (
        rng.choice(("", "-")) + "9" * digits + rng.choice(("", ".5", "e5", "e400", "." + "9" * min(digits, size // 3)))
    )


def extra_names(rng: random.Random, schema: JSONSchema, size: int) -> Fragment:
    return json.dumps(minimal_value(schema))


def whitespace(rng: random.Random, schema: JSONSchema, size: int) -> Fragment:
    blank = rng.choice((" ", "\n", "\t", "\r\n")) * (size // 2)
    return f"{blank}{json.dumps(minimal_value(schema))}{blank}"


def _filled_list(rng: random.Random, item: str, size: int) -> Fragment:
    return "[" + ",".join([item] * max(1, (size - 2) // (len(item.encode()) + 1))) + "]"


Shape: TypeAlias = Callable[[random.Random, JSONSchema, int], Fragment]
SHAPES: Sequence[Shape] = (
    *(long_string, many_items, distinct_items, nested, large_object, number, extra_names, whitespace),
)
KEY_SHAPES = (extra_names,)
