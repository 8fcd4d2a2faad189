"""Writes log lines to standard error, as one JSON object per line or as text.

Values of fields may come from requests. A value cannot start a new line, cannot look like another field, and cannot
contain characters that a terminal interprets.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TextIO

import msgspec

from gpu_runtime.process.shared_settings import LogSettings

LOG_LEVELS: Mapping[str, int] = MappingProxyType(
    {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
)
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_UNSAFE_CHARACTERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Control characters, line separators, characters that change the direction of the text, and lone surrogates."""
_PLAIN_VALUE = re.compile(r"[!#-<>-\[\]-~]+")
"""A value that needs no quotes in a line of text: ASCII without spaces, quotes, backslashes and equals signs."""
_PRINTED_NAMES: Mapping[str, str] = MappingProxyType({"object_name": "name"})
"""Fields that are printed under another name. `logging` reserves `name`, so `extra` cannot contain it."""


def configure_logging(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Write every log line and every Python warning of this process to the stream. Call it once, at the start."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(level=LOG_LEVELS[settings.level], handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object with the fields time, level, logger, message and those of `extra`.

    The traceback of an exception is the field `stacktrace`, as in zap. A field of `extra` cannot overwrite the others.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in extra_fields(record).items() if key not in line}
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return _escape(_encode_json(line))


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text with `key=value` fields.

    A value with unusual characters is quoted, as in JSON. The traceback of an exception follows the line, with indented
    lines.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_quote(value)}" for key, value in extra_fields(record).items())
        line = f"{_timestamp(record)} {record.levelname:<7} {record.name}: {_escape(record.getMessage())}{fields}"
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"    {_escape(each)}" for each in trace)])


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of `extra`, under the names that are printed."""
    return {
        _PRINTED_NAMES.get(key, key): value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES
    }


def _encode_json(line: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except UnicodeEncodeError:  # a value has a lone surrogate, for example from a path that is not UTF-8
        return json.dumps(line, default=str)


def _quote(value: object) -> str:
    text = str(value)
    return text if _PLAIN_VALUE.fullmatch(text) else _escape(json.dumps(text, ensure_ascii=False))


def _escape(text: str) -> str:
    return _UNSAFE_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
