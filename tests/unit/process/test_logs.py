"""Log lines are JSON objects or text, with the fields of the caller."""

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from gpu_runtime.process import logs
from gpu_runtime.process.shared_settings import LogSettings

logger = logging.getLogger("test.logs")


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_log_line_contains_the_fields() -> None:
    stream = io.StringIO()
    logs.configure_logging(LogSettings(format="json"), stream)
    logger.info(
        "claimed %s",
        "stock-1",
        extra={
            "unit": "demo",
            "where": {
                1,
            },
            "level": "own",
        },
    )
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "test.logs",
        "message": "claimed stock-1",
        "unit": "demo",
        "where": [1],
    }


def test_value_without_json_encoding_is_logged_as_text() -> None:
    stream = io.StringIO()
    logs.configure_logging(LogSettings(format="json"), stream)
    logger.info("module as a field", extra={"value": logging})
    assert "module" in json.loads(stream.getvalue())["value"]


def test_traceback_is_logged_on_one_line() -> None:
    stream = io.StringIO()
    logs.configure_logging(LogSettings(format="json"), stream)
    logger.error("failed", exc_info=ValueError("broken\nin two"), extra={"error": "the message"})
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(line)["stacktrace"]
    assert json.loads(line)["error"] == "the message", "the traceback does not replace the error message"


@pytest.mark.parametrize(
    ("settings", "printed"),
    [(LogSettings(format="json"), '"name":"demo"'), (LogSettings(format="text"), " name=demo")],
)
def test_object_name_is_printed_as_name(settings: LogSettings, printed: str) -> None:
    stream = io.StringIO()
    logs.configure_logging(settings, stream)
    logger.info("claimed", extra={"namespace": "team", "object_name": "demo"})
    assert printed in stream.getvalue()
    assert "object_name" not in stream.getvalue()


def test_log_level_and_format_are_configurable() -> None:
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.configure_logging(LogSettings(level="warning", format="text"), stream)
        logger.info("below the level")
        logger.warning("above the level", extra={"unit": "demo"})
        warnings.warn("old", stacklevel=1)
    first, second, *_ = stream.getvalue().splitlines()
    assert first.endswith("WARNING test.logs: above the level unit=demo")
    assert "old" in second
