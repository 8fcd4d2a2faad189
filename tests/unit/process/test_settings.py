"""A settings file is right, or the error names the key and the remedy."""

from pathlib import Path

import pytest

from gpu_runtime.controller_manager.settings import ControllerManagerSettings, Images, PodSecurity
from gpu_runtime.process.settings import BadSettings, load, parse
from gpu_runtime.process.shared_settings import Endpoints, LeaderElection
from gpu_runtime.runtime_api.settings import RuntimeAPISettings

IMAGES = "images: {stock: a, placeholder: b}\n"

WRONG = {
    "an unknown key": ("kubernets: {}", "kubernets is not a setting; did you mean kubernetes?"),
    "an unknown key inside": (
        "leaderElection: {leaseSecond: 15}",
        "leaderElection.leaseSecond is not a setting; did you mean leaseSeconds?",
    ),
    "a key in another case": ("leaderelection: {}", "leaderelection is not a setting; did you mean leaderElection?"),
    "a key like no other": (
        "workers: {zzz: 1}",
        "workers.zzz is not a setting; there are gpuStorages, gpuUnits, stockPools",
    ),
    "two unknown keys": ("a1: 1\nlogs: {}", "; logs is not a setting; did you mean log?"),
    "text for a number": ("workers: {gpuUnits: many}", "workers.gpuUnits: expected int, got str"),
    "a number too small": ("workers: {gpuUnits: 0}", "workers.gpuUnits: expected int >= 1, got 0"),
    "a number for a section": ("log: 3", "log: expected a section, got int"),
    "an unknown choice": ("log: {level: loud}", "log.level: 'loud' is not one of debug, error, info, warning"),
    "text for a switch": ("podSecurity: {requireNonRoot: 'no'}", "podSecurity.requireNonRoot: expected bool, got str"),
    "times that do not fit": ("leaderElection: {leaseSeconds: 5}", "leaderElection: leaseSeconds must be longer than"),
    "an address that is none": ("endpoints: {bind: '8081'}", "endpoints: bind is '8081'; expected host:port"),
    "a key given twice": ("log: {level: info, level: debug}", "'level' is given twice"),
    "a list": ("- a", "the file: expected a section, got array"),
    "no YAML": ("a: [", "not YAML"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(BadSettings) as refusal:
        parse(text if text.startswith(("-", "a: [")) else IMAGES + text, ControllerManagerSettings)
    assert message in str(refusal.value)


def test_what_is_required_is_named() -> None:
    with pytest.raises(BadSettings, match=r"^images is required$"):
        parse("", ControllerManagerSettings)
    with pytest.raises(BadSettings, match=r"^images.placeholder is required$"):
        parse("images: {stock: a}", ControllerManagerSettings)


def test_what_is_left_out_has_its_default() -> None:
    expected = ControllerManagerSettings(images=Images(stock="a", placeholder="b"))
    assert parse(IMAGES, ControllerManagerSettings) == expected
    assert parse(IMAGES + "leaderElection: {leaseSeconds: 30}", ControllerManagerSettings).leader_election == (
        LeaderElection(lease_seconds=30)
    )


def test_off_is_a_word_and_only_true_and_false_are_switches() -> None:
    assert parse("authentication: {mode: off}", RuntimeAPISettings).authentication.mode == "off"
    for text, value in (("true", True), ("False", False)):
        assert parse(IMAGES + f"podSecurity: {{requireNonRoot: {text}}}", ControllerManagerSettings).pod_security == (
            PodSecurity(require_non_root=value)
        )
    for text in ("yes", "no", "off", "trueish"):
        with pytest.raises(BadSettings, match=r"podSecurity\.requireNonRoot: expected bool, got str"):
            parse(IMAGES + f"podSecurity: {{requireNonRoot: {text}}}", ControllerManagerSettings)


def test_the_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"none\.yaml: No such file or directory"):
        load(tmp_path / "none.yaml", ControllerManagerSettings)
    (tmp_path / "bad.yaml").write_text("imges: {}")
    with pytest.raises(BadSettings, match=r"bad\.yaml: imges is not a setting; did you mean images\?"):
        load(tmp_path / "bad.yaml", ControllerManagerSettings)


@pytest.mark.parametrize(
    ("bind", "host", "port"),
    [(":8081", None, 8081), ("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:8081", "::1", 8081)],
)
def test_an_address_has_a_host_and_a_port(bind: str, host: str | None, port: int) -> None:
    endpoints = Endpoints(bind=bind)
    assert (endpoints.host, endpoints.port) == (host, port)
