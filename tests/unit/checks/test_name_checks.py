"""Each check of names, words and documents reports what it is for, and nothing else."""

import ast
from pathlib import Path

import msgspec
import pytest

from checks import markdown_links
from checks.banned_words import banned_in, defined_names, name_parts
from checks.log_calls import log_findings
from checks.markdown_links import link_error
from checks.protocol_states import misplaced_states
from checks.settings_keys import keys_without_unit
from checks.unique_names import repeated_classes, repeated_modules


def test_name_parts_of_snake_case_and_camel_case() -> None:
    assert name_parts("_get_HTTPServer") == ("get", "http", "server")
    assert name_parts("maxConcurrentReconciles") == ("max", "concurrent", "reconciles")


@pytest.mark.parametrize("name", ["room", "get_room", "RoomService", "AT_ONCE", "look_ups", "a worker is let go"])
def test_banned_word_is_found_as_a_whole_part(name: str) -> None:
    assert list(banned_in(name))


@pytest.mark.parametrize("name", ["mushroom", "capacity", "headroom"])
def test_word_inside_another_word_is_allowed(name: str) -> None:
    assert list(banned_in(name)) == []


def test_only_definitions_are_names_of_ours() -> None:
    tree = ast.parse(
        "import x as alias\ndef run(argument):\n    value = argument.foreign_method()\n    self.field = 1\n"
    )

    assert {name for _, name in defined_names(tree)} == {"alias", "run", "argument", "value", "field"}


def test_repeated_module_name_is_reported_unless_conventional() -> None:
    paths = ["src/a/store.py", "src/b/store.py", "src/a/main.py", "src/b/main.py", "src/a/children/service.py"]

    assert [(each.path, each.line) for each in repeated_modules(paths)] == [("src/b/store.py", 1)]


def test_repeated_class_name_is_reported() -> None:
    modules = [("src/a.py", ast.parse("class Store: ...")), ("src/b.py", ast.parse("\nclass Store: ..."))]

    assert [(each.path, each.line) for each in repeated_classes(modules)] == [("src/b.py", 2)]


@pytest.mark.parametrize(
    "source",
    [
        "from contract.record import RecordState",
        "from contract.record import RecordState as State",
        "import contract.record as r\nended = record.state is r.RecordState.TERMINAL",
    ],
)
def test_protocol_state_outside_of_its_module_is_reported(source: str) -> None:
    modules = [
        ("src/record.py", ast.parse(source)),
        ("src/view.py", ast.parse(source)),
        ("src/x.py", ast.parse(source)),
    ]

    found = list(misplaced_states(modules, {"RecordState": ("src/record.py", "src/view.py")}))

    assert {each.path for each in found} == {"src/x.py"}
    assert "move the decision to src/record.py" in found[0].message


def test_log_message_must_be_constant_and_fields_listed() -> None:
    tree = ast.parse('logger.info(f"unit {name}")\nlogger.info("unit created", extra={"unit_nmae": 1, "namespace": 2})')
    found = list(log_findings("x.py", tree, frozenset({"namespace"})))

    assert [each.line for each in found] == [1, 2]
    assert "not constant" in found[0].message
    assert "unit_nmae" in found[1].message


class Section(msgspec.Struct, rename="camel"):
    timeout: float = 1
    timeout_seconds: float = 1
    max_retained: int = 1


class Settings(msgspec.Struct, rename="camel"):
    section: Section = msgspec.field(default_factory=Section)
    wait: int = 1


def test_settings_key_with_a_number_needs_a_unit() -> None:
    assert keys_without_unit(Settings) == ["section.timeout", "wait"]


def test_broken_link_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown_links, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("# A heading\n\n```bash\n# not a heading\n```\n")

    assert link_error("page.md", "page.md#a-heading") == ""
    assert link_error("page.md", "#not-a-heading") == "the page has no such heading"
    assert link_error("page.md", "missing.md") == "there is no such file"
