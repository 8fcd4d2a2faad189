"""Writes log lines to standard error, as one JSON object per line or as text."""

import logging
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
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text with `key=value` fields. The traceback of an exception follows the line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in extra_fields(record).items())
        line = f"{_timestamp(record)} {record.levelname:<7} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of `extra`, under the names that are printed."""
    return {
        _PRINTED_NAMES.get(key, key): value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES
    }


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
