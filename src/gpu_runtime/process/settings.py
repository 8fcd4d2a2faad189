"""Settings: YAML into a frozen struct. A wrong or unknown key is an error that names it and says what was meant.

Nothing here reads the environment: what a process does is what its file says.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import Struct

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.validation.unknown_fields import choices_at, unknown_fields, value_at


class BaseSettings(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A section of a settings file. Every field has a docstring, which the sample file shows as its comment."""


class InvalidSettings(Rejected):
    code = "bad_settings"


S = TypeVar("S", bound=BaseSettings)


def load_settings(path: Path, model: type[S]) -> S:
    """The settings in the file, or BadSettings with everything the operator needs to correct it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidSettings(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"{path}: not UTF-8 at byte {error.start + 1}") from error
    try:
        return parse_settings(text, model)
    except InvalidSettings as bad:
        raise InvalidSettings(f"{path}: {bad}") from bad


def parse_settings(text: str, model: type[S]) -> S:
    try:
        document = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - derived from the safe loader
    except yaml.YAMLError as error:
        raise InvalidSettings(f"not YAML: {_yaml_error_location(error)}") from error
    except RecursionError as error:
        raise InvalidSettings("not YAML: it is nested too deeply") from error
    document = {} if document is None else document
    if unknown := [f"{each.path} is not a setting; {each.hint}" for each in unknown_fields(document, model)]:
        raise InvalidSettings("; ".join(unknown))
    try:
        return msgspec.convert(document, model)
    except msgspec.ValidationError as error:
        raise InvalidSettings(_format_validation_error(str(error), document, model)) from error


def _yaml_error_location(error: yaml.YAMLError) -> str:
    """Where and what, without the text around it: a file may hold secrets, and errors are logged."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
    return "it has characters that YAML does not allow"


_BOOL_TAG = "tag:yaml.org,2002:bool"


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice instead of keeping the last one, and in which off and no are words."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as its base class has it
        first: [(tag, pattern) for tag, pattern in known if tag != _BOOL_TAG]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The loader's own constructors raise whatever Python raises over 2001-99-99."""
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"it is no {kind}", node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is given twice", node.value[index][0].start_mark
                )
        return super().construct_mapping(node, deep)


_UniqueKeyLoader.add_implicit_resolver(_BOOL_TAG, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def _format_validation_error(error: str, document: Any, model: type[BaseSettings]) -> str:
    """The decoder's words with the key's path in front, and with what was expected and found."""
    text, _, place = error.partition(" - at `$")
    path = place.rstrip("`").lstrip(".")
    if missing := re.fullmatch(r"Object missing required field `(.+)`", text):
        return f"{'.'.join(filter(None, (path, missing[1])))} is required"
    if text.startswith("Invalid enum value"):
        choices = ", ".join(map(str, choices_at(model, path)))
        return f"{path}: {value_at(document, path)!r} is not one of {choices}"
    found = "" if "got" in text or not text.startswith("Expected") else f", got {value_at(document, path)!r}"
    worded = text.replace("`", "").replace("Expected", "expected").replace("object", "a section")
    return f"{path or 'the file'}: {worded}{found}"
