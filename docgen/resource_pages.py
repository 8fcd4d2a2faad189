"""docs/reference/resources.md: fields, defaults and rules of every kind."""

from collections.abc import Iterator
from typing import Any

from docgen.markdown import code, page, table
from gpu_runtime.contract.crd import DEFINITIONS
from gpu_runtime.contract.crd.markers import CrdDefinition
from gpu_runtime.manifests.crd_manifest import custom_resource_definition

CONSTRAINTS = ("pattern", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")


def resources_page() -> str:
    introduction = (
        "This page lists every kind of the API group `runtime.lokiwager.io/v1alpha1`. The page is generated from the same models as the"
        " CRDs in `config/crd`. The API server rejects an object that violates a constraint or a rule. `kubectl explain"
        " gpuunit.spec` shows the same descriptions."
    )
    return page("Resources", introduction, *(_kind(definition) for definition in DEFINITIONS))


def _kind(definition: CrdDefinition[Any]) -> str:
    version = custom_resource_definition(definition)["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    names = ", ".join(code(name) for name in (definition.resource.plural, *definition.short_names))
    parts = [f"## {definition.resource.kind}", schema["description"], f"Names for kubectl: {names}."]
    for section in ("spec", "status"):
        parts.append(f"### {definition.resource.kind} {section}")
        parts.append(table(("field", "type", "default", "constraints", "description"), _fields(schema, section)))
    if rules := list(_rules(schema["properties"]["spec"], "spec")):
        parts += [f"### {definition.resource.kind} rules", table(("field", "rule"), rules)]
    parts.append(_columns(version["additionalPrinterColumns"]))
    return "\n\n".join(parts)


def _columns(columns: list[dict[str, Any]]) -> str:
    shown = ", ".join(column["name"] for column in columns if not column.get("priority"))
    wide = ", ".join(column["name"] for column in columns if column.get("priority"))
    return f"Columns of `kubectl get`: {shown}." + (
        f" Additional columns of `kubectl get -o wide`: {wide}." if wide else ""
    )


def _fields(schema: dict[str, Any], section: str) -> Iterator[tuple[str, ...]]:
    yield from _properties(schema["properties"][section], section)


def _properties(schema: dict[str, Any], path: str) -> Iterator[tuple[str, ...]]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        inner = field.get("items", field)
        kind = f"array of {inner['type']}" if field["type"] == "array" else field["type"]
        default = code(_literal(field["default"])) if "default" in field else ("required" if name in required else "")
        yield code(here), kind, default, _constraints(field), field.get("description", "")
        if not (name == "conditions" and path == "status"):  # Kubernetes documents the fields of a condition
            yield from _properties(inner, f"{here}[]" if field["type"] == "array" else here)


def _constraints(field: dict[str, Any]) -> str:
    inner = field.get("items", {}) if field["type"] == "array" else {}
    found = [f"{name} {code(_value(field[name]))}" for name in CONSTRAINTS if name in field]
    found += [f"each {name} {code(_value(inner[name]))}" for name in CONSTRAINTS if name in inner]
    return ", ".join(found)


def _literal(value: Any) -> str:
    """Return a default as in YAML: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _rules(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield code(f"{path}{rule.get('fieldPath', '')}"), rule["message"]
    for name, field in schema.get("properties", {}).items():
        yield from _rules(field.get("items", field), f"{path}.{name}")
