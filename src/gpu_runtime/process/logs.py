"""Log lines on standard error: one JSON object per line, or text for people."""

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


def configure_logging(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send every log line and every warning of this process to the stream. Called once, by its main."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(level=LOG_LEVELS[settings.level], handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


class JsonFormatter(logging.Formatter):
    """`logger.info("claimed", extra={"unit": name})` becomes an object with time, level, logger, message and unit."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in extra_fields(record).items() if key not in line}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in extra_fields(record).items())
        line = f"{_timestamp(record)} {record.levelname:<7} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that the caller gave with `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES}


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
