"""docs/reference/settings.md: every settings key of every process."""

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from checks.settings_keys import PROCESSES
from docgen.markdown import code, page, table
from gpu_runtime.process.field_docs import field_doc
from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import NatsSettings

HEADER = ("key", "type", "default", "meaning")


def settings_page() -> str:
    introduction = (
        "Every process reads one YAML file: `gpu-runtime <process> --config FILE`. If the file has an unknown key, a value of the"
        " wrong type or a value out of bounds, the process prints the key and the reason, and exits with status 2. If two"
        " times violate a [rule](timers.md#rules), the process prints both keys and exits with status 2. The files in"
        " `config/local` contain every key. The files of a deployment are `config/<process>/settings.yaml`. For the controller"
        " manager, the file is `config/manager/settings.yaml`. A change of the file takes effect when the process restarts."
    )
    nats = (
        "Every process that connects to NATS has a section `nats` with these keys. In the settings of the controller manager, the"
        " section is `serverless.nats`. The controller manager copies this section into the settings of the sidecars. Use the same"
        " `prefix` and the same `streams` in every process, because runtime-api, activator and result-store each apply the values of"
        " their own settings to the streams when they start."
    )
    shared = f"## nats\n\n{nats}\n\n{table(HEADER, _rows(NatsSettings, 'nats.'))}"
    return page("Settings", introduction, *(_process(name, model) for name, model in PROCESSES.items()), shared)


def _process(name: str, model: type[BaseSettings]) -> str:
    return f"## {name}\n\n{table(HEADER, _rows(model, ''))}"


def _rows(model: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, ...]]:
    for field in msgspec.structs.fields(model):
        key = f"{prefix}{field.encode_name}"
        kind = msgspec.inspect.type_info(field.type)
        doc = field_doc(model, field.name)
        if isinstance(kind, msgspec.inspect.StructType):
            if kind.cls is NatsSettings:
                yield code(f"{key}.*"), "section", "", f"{doc} See [nats](#nats)."
            else:
                yield from _rows(kind.cls, f"{key}.")
        else:
            yield code(key), _type(kind), _default(field), doc


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    text = yaml.safe_dump(msgspec.to_builtins(value), default_flow_style=True).strip().removesuffix("...").strip()
    return code(text)


def _type(kind: Any) -> str:
    match kind:
        case msgspec.inspect.Metadata(type=inner):
            name = _type(inner)
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            name = _bounded("integer" if isinstance(kind, msgspec.inspect.IntType) else "number", kind)
        case msgspec.inspect.BoolType():
            name = "boolean"
        case msgspec.inspect.LiteralType(values=values):
            name = " or ".join(code(value) for value in values)
        case msgspec.inspect.VarTupleType(item_type=item):
            name = f"list of {_type(item)}"
        case msgspec.inspect.StructType(cls=cls):
            name = "object with " + ", ".join(code(each.encode_name) for each in msgspec.structs.fields(cls))
        case _:
            name = "string"
    return name


def _bounded(name: str, kind: Any) -> str:
    signs = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
    limits = [f"{sign} {_plain(getattr(kind, key))}" for key, sign in signs if getattr(kind, key) is not None]
    return f"{name} {', '.join(limits)}".strip()


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else str(number)
