"""Settings files that document every setting: its docstring as a comment, its value below."""

import textwrap
from collections.abc import Iterator

import msgspec

from gpu_runtime.manifests.yaml_writer import GENERATED, plain
from gpu_runtime.process.field_docs import field_doc
from gpu_runtime.process.settings import Settings


def settings_file(about: str, settings: Settings) -> str:
    return GENERATED + f"# {about}\n" + "".join(_lines(settings, ""))


def _lines(settings: Settings, indent: str) -> Iterator[str]:
    for field in msgspec.structs.fields(settings):
        yield "\n" if not indent else ""
        yield textwrap.indent(_comment(type(settings), field.name), indent)
        value = getattr(settings, field.name)
        if isinstance(value, Settings):
            yield f"{indent}{field.encode_name}:\n"
            yield from _lines(value, indent + "  ")
        else:
            yield textwrap.indent(plain({field.encode_name: value}), indent)


def _comment(model: type, name: str) -> str:
    doc = field_doc(model, name)
    if not doc:
        raise LookupError(f"{model.__name__}.{name} has no docstring")
    return "".join(f"# {line}\n" for line in textwrap.wrap(doc, 100))
