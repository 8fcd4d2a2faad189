"""Strategies for custom resources: specs from the schemas of the CRDs, with boundary and unusual values."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gpu_runtime.contract.crd.well_known import GROUP, Annotation, Finalizer, Label
from tests.fuzz.strategies import texts

CRD_DIR = Path(__file__).parents[2] / "config" / "crd" / "bases"
Schema = dict[str, Any]


@cache
def spec_schema(plural: str) -> Schema:
    """The OpenAPI schema of the spec of a kind."""
    definition = yaml.safe_load((CRD_DIR / f"{GROUP}_{plural}.yaml").read_text())
    schema: Schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def values(schema: Schema, name: str = "") -> SearchStrategy[Any]:
    """Values that the schema accepts or almost accepts."""
    match schema.get("type"):
        case "object" if "properties" in schema:
            return _objects(schema)
        case "object":
            return st.dictionaries(texts(max_size=8), texts(max_size=8), max_size=2)
        case "array":
            return st.lists(values(schema["items"], name), max_size=3)
        case "integer":
            return _integers(schema, name)
        case "boolean":
            return st.booleans()
    return _texts(schema, name)


def _objects(schema: Schema) -> SearchStrategy[dict[str, Any]]:
    fields = {name: values(inner, name) for name, inner in schema["properties"].items()}
    required = {name: fields[name] for name in schema.get("required", ())}
    optional = {name: each for name, each in fields.items() if name not in required}
    return st.fixed_dictionaries(required, optional=optional)


def _integers(schema: Schema, name: str) -> SearchStrategy[int]:
    minimum, maximum = schema.get("minimum", -(2**31)), schema.get("maximum", 2**31 - 1)
    if name == "replicas":  # each replica is a pod
        return st.integers(0, 2)
    if name == "deleteAfterSeconds":  # the unit must exist until the test has read its condition
        return st.sampled_from([3600, maximum])
    return st.one_of(st.integers(minimum, min(maximum, minimum + 5)), st.sampled_from([minimum, maximum]))


UNUSUAL_QUANTITIES = (
    "1Gi",
    "1024Mi",
    "1.5Gi",
    "123e6",
    "0",
    "-1",
    "16m",
    "1e100",
    "7Ei",
    "99Ei",
    "",
    "one",
    "0x10",
    "9" * 64,
)
UNUSUAL_PATHS = (
    "/data",
    "/data/",
    "/data/a",
    "/",
    "//",
    "/..",
    "/proc",
    "/run/gpu-runtime",
    "/run/gpu-runtime/framework.sock",
)


def _texts(schema: Schema, name: str) -> SearchStrategy[str]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    likely: list[SearchStrategy[str]] = []
    if name in ("memory", "size", "capacity"):
        likely = [st.sampled_from(UNUSUAL_QUANTITIES)]
    elif name.endswith("Path"):
        likely = [st.sampled_from(UNUSUAL_PATHS)]
    if pattern := schema.get("pattern"):
        limit = schema.get("maxLength", 63)
        likely.append(st.from_regex(pattern.replace("$", r"\Z"), fullmatch=True).map(lambda text: text[:limit]))
    odd = texts(max_size=20).map(lambda text: text[: schema.get("maxLength", 1000)])
    return st.one_of(*likely, *likely, odd) if likely else odd


ANNOTATION_KEYS = [value for key, value in vars(Annotation).items() if key.isupper()]
LABEL_KEYS = [value for key, value in vars(Label).items() if key.isupper()]
ANNOTATION_VALUES = st.one_of(
    texts(), st.sampled_from(["9" * 5000, "a" * 20_000, "runtime-stock", "{", '{"a":'])
).filter(lambda text: "\0" not in text)
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "annotations": st.dictionaries(
            st.sampled_from([*ANNOTATION_KEYS, f"{GROUP}/odd", "x"]), ANNOTATION_VALUES, max_size=4
        ),
        "labels": st.dictionaries(
            st.sampled_from([*LABEL_KEYS, f"{GROUP}/odd"]),
            st.sampled_from(["", "gpu-runtime", "a", "stock", "A_b.c", "0" * 63]),
            max_size=3,
        ),
        "finalizers": st.lists(
            st.sampled_from([Finalizer.STORAGE_PROTECTION, f"{GROUP}/odd", "example.com/x", "orphan"]),
            max_size=2,
            unique=True,
        ),
    },
)
