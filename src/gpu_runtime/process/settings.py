"""Loads the settings of a process from a YAML file into frozen structs. Rejects unknown keys and invalid values.

Settings come only from the file. This module does not read environment variables.
"""

import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import Struct

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.validation.unknown_fields import choices_at, unknown_fields, value_at


class BaseSettings(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A section of a settings file. The docstring of a field is its comment in the generated settings files."""


class InvalidSettings(Rejected):
    """A settings file is invalid. The message names the file, the key and the expected value."""

    code = "invalid_settings"


S = TypeVar("S", bound=BaseSettings)


def load_settings(path: Path, model: type[S]) -> S:
    """Load a settings file. Raises InvalidSettings."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidSettings(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"{path}: not UTF-8 at byte {error.start + 1}") from error
    try:
        return parse_settings(text, model)
    except InvalidSettings as error:
        raise InvalidSettings(f"{path}: {error}") from error


def parse_settings(text: str, model: type[S]) -> S:
    """Parse the text of a settings file. Raises InvalidSettings."""
    try:
        document = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - derived from the safe loader
    except yaml.YAMLError as error:
        raise InvalidSettings(f"not YAML: {_yaml_error_location(error)}") from error
    except RecursionError as error:
        raise InvalidSettings("not YAML: the document is nested too deeply") from error
    return convert_settings({} if document is None else document, model)


def convert_settings(document: Any, model: type[S]) -> S:
    """Convert a parsed document to settings. Raises InvalidSettings."""
    if unknown := [f"{each.path} is not a setting; {each.hint}" for each in unknown_fields(document, model)]:
        raise InvalidSettings("; ".join(unknown))
    try:
        return msgspec.convert(document, model)
    except msgspec.ValidationError as error:
        raise InvalidSettings(_format_validation_error(str(error), document, model)) from error


def numbers_by_key(settings: BaseSettings) -> dict[str, float]:
    """Return the numbers in the settings, by the path of their key in the file."""
    return dict(_numbers(msgspec.to_builtins(settings), ""))


def _numbers(section: dict[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", value


def _yaml_error_location(error: yaml.YAMLError) -> str:
    """Return the position and the problem, but no text of the file.

    The text may contain secrets, and errors are logged.
    """
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
    return "the document contains characters that YAML does not allow"


_BOOL_TAG = "tag:yaml.org,2002:bool"


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys, and reads only true and false as booleans.

    If a key occurs several times, the base class uses the last value. It also reads on, off, yes and no as booleans.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class declares it the same way
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL_TAG]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a value. Raise a YAMLError if the value is invalid, such as the date 2001-99-99.

        For some invalid values, the base class raises an exception that is not a YAMLError.
        """
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"the value is not a valid {kind}", node.start_mark
            ) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key {key!r}", node.value[index][0].start_mark
                )
        return super().construct_mapping(node, deep)


_UniqueKeyLoader.add_implicit_resolver(_BOOL_TAG, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def _format_validation_error(error: str, document: Any, model: type[BaseSettings]) -> str:
    """Rewrite an error of the decoder: the path of the key, then the expected and the actual value."""
    text, _, place = error.partition(" - at `$")
    path = place.rstrip("`").lstrip(".")
    if not path and not text.startswith(("Expected", "Object")):
        return text  # the keys of a timing rule are in several sections
    if missing := re.fullmatch(r"Object missing required field `(.+)`", text):
        return f"{'.'.join(filter(None, (path, missing[1])))} is required"
    if text.startswith("Invalid enum value"):
        choices = ", ".join(map(str, choices_at(model, path)))
        return f"{path}: {value_at(document, path)!r} is not one of {choices}"
    actual = "" if "got" in text or not text.startswith("Expected") else f", got {value_at(document, path)!r}"
    message = text.replace("`", "").replace("Expected", "expected").replace("object", "a section")
    return f"{path or 'the file'}: {message}{actual}"
