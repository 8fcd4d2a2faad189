"""Writes settings files that document every setting: the docstring as a comment, and the value below it."""

import textwrap
from collections.abc import Iterator

import msgspec

from gpu_runtime.manifests.yaml_writer import GENERATED_HEADER, to_yaml
from gpu_runtime.process.field_docs import field_doc
from gpu_runtime.process.settings import BaseSettings


def settings_file(description: str, settings: BaseSettings) -> str:
    comment = "".join(f"# {line}\n" for line in textwrap.wrap(description, 118))
    return GENERATED_HEADER + comment + "".join(_lines(settings, ""))


def _lines(settings: BaseSettings, indent: str) -> Iterator[str]:
    for field in msgspec.structs.fields(settings):
        yield "\n" if not indent else ""
        yield textwrap.indent(_comment(type(settings), field.name), indent)
        value = getattr(settings, field.name)
        if isinstance(value, BaseSettings):
            yield f"{indent}{field.encode_name}:\n"
            yield from _lines(value, indent + "  ")
        else:
            yield textwrap.indent(to_yaml({field.encode_name: value}), indent)


def _comment(model: type, name: str) -> str:
    doc = field_doc(model, name)
    if not doc:
        raise LookupError(f"{model.__name__}.{name} has no docstring: add one that describes the setting")
    return "".join(f"# {line}\n" for line in textwrap.wrap(doc, 100))
