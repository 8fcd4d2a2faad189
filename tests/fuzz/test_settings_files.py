"""A settings file is accepted or rejected with a message, and an unknown key is reported at any depth."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gpu_runtime.activator.settings import ActivatorSettings
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.process.settings import BaseSettings, InvalidSettings, load_settings, parse_settings
from gpu_runtime.result_store.settings import ResultStoreSettings
from gpu_runtime.runtime_api.settings import RuntimeAPISettings
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings
from tests.fuzz.fuzz_settings import call_or_rejection, fuzzed
from tests.fuzz.strategies import altered_documents, mutated_bytes, texts

MODELS: dict[str, type[BaseSettings]] = {
    "activator": ActivatorSettings,
    "controller-manager": ControllerManagerSettings,
    "result-store": ResultStoreSettings,
    "runtime-api": RuntimeAPISettings,
    "worker-sidecar": WorkerSidecarSettings,
}
CONFIG = Path(__file__).parents[2] / "config" / "local"
FILES = {name: (CONFIG / f"{name}.yaml").read_text() for name in MODELS}
DOCUMENTS: dict[str, Any] = {name: yaml.safe_load(text) for name, text in FILES.items()}
# The nesting stays moderate: ten times deeper nesting takes the same code path and a hundred times longer.
ODD = ("a: 2001-99-99", "a: !!int x", "a: !!bool x", "a: !!timestamp x", "&a [*a]", "log: &a {level: *a}", "[" * 500)


def dumped(document: Any) -> str:
    return str(yaml.dump(document, Dumper=yaml.CSafeDumper))


def contents(name: str) -> SearchStrategy[bytes]:
    """Contents of a settings file of this process: the sample file with other values, mutated bytes, or random text."""
    altered = altered_documents([DOCUMENTS[name]]).map(lambda document: dumped(document).encode())
    mutated = mutated_bytes([FILES[name].encode(), *(odd.encode() for odd in ODD)])
    return st.one_of(altered, mutated, texts(max_size=100).map(lambda text: text.encode(errors="replace")))


SETTINGS_CONTENTS = st.one_of([st.tuples(st.just(name), contents(name)) for name in MODELS])


@fuzzed(50)
@given(SETTINGS_CONTENTS)
@example(("runtime-api", b"\xff\xfe"))
@example(("runtime-api", b"a: 2001-99-99"))
@example(("runtime-api", b"limits: {burst: !!int x}"))
@example(("runtime-api", b"limits: {burst: !!bool x}"))
@example(("runtime-api", b"limits: {burst: !!timestamp x}"))
@example(("runtime-api", b"[" * 1000))
@example(("runtime-api", b"limits: {burst: " + b"9" * 5000 + b"}"))
def test_settings_file_is_accepted_or_rejected_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, file: tuple[str, bytes]
) -> None:
    name, content = file
    path = tmp_path_factory.getbasetemp() / "settings.yaml"
    path.write_bytes(content)
    settings, rejection = call_or_rejection(InvalidSettings, lambda: load_settings(path, MODELS[name]))
    assert isinstance(settings, MODELS[name]) or (rejection and rejection.message.startswith(str(path)))


def sections(model: type[msgspec.Struct], document: dict[str, Any], at: str = "") -> list[str]:
    """The paths of all sections of a file, including the root."""
    inner = [(f"{at}{key}.", value) for key, value in document.items() if isinstance(value, dict)]
    return [at, *(path for section, value in inner for path in sections(model, value, section))]


@fuzzed(50)
@given(st.sampled_from(sorted(MODELS)), st.data())
def test_unknown_settings_key_is_reported(name: str, data: st.DataObject) -> None:
    document = msgspec.to_builtins(DOCUMENTS[name])
    section = data.draw(st.sampled_from(sections(MODELS[name], document)))
    part = document
    for step in section.split(".")[:-1]:
        part = part[step]
    key = data.draw(st.from_regex(r"[a-z][a-zA-Z]{0,12}Zz", fullmatch=True))
    part[key] = data.draw(st.sampled_from([1, "x", None, [], {}]))
    with pytest.raises(InvalidSettings) as raised:
        parse_settings(dumped(document), MODELS[name])
    assert f"{section}{key} is not a setting" in str(raised.value)
