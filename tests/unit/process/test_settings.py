"""Settings files are loaded, and the error for an invalid file names the key and the remedy."""

from pathlib import Path

import pytest

from gpu_runtime.controller_manager.settings import ControllerManagerSettings, ImageSettings, PodSettings
from gpu_runtime.process.settings import InvalidSettings, load_settings, parse_settings
from gpu_runtime.process.shared_settings import BindAddressSettings, LeaderElectionSettings
from gpu_runtime.runtime_api.settings import RuntimeAPISettings

IMAGES = "images: {stock: a, placeholder: b}\n"

INVALID = {
    "an unknown key": ("kubernets: {}", "kubernets is not a setting; did you mean kubernetes?"),
    "an unknown key inside": (
        "leaderElection: {leaseSecond: 15}",
        "leaderElection.leaseSecond is not a setting; did you mean leaseDurationSeconds?",
    ),
    "a key in another case": ("leaderelection: {}", "leaderelection is not a setting; did you mean leaderElection?"),
    "a key without a similar one": (
        "maxConcurrentReconciles: {zzz: 1}",
        "maxConcurrentReconciles.zzz is not a setting; use one of gpuStorages, gpuUnits, stockPools",
    ),
    "two unknown keys": ("a1: 1\nlogs: {}", "; logs is not a setting; did you mean log?"),
    "text for a number": (
        "maxConcurrentReconciles: {gpuUnits: many}",
        "maxConcurrentReconciles.gpuUnits: expected int, got str",
    ),
    "a number below the minimum": (
        "maxConcurrentReconciles: {gpuUnits: 0}",
        "maxConcurrentReconciles.gpuUnits: expected int >= 1, got 0",
    ),
    "a number for a section": ("log: 3", "log: expected a section, got int"),
    "an unknown choice": ("log: {level: loud}", "log.level: 'loud' is not one of debug, error, info, warning"),
    "text for a boolean": ("pods: {requireNonRoot: 'no'}", "pods.requireNonRoot: expected bool, got str"),
    "election times that allow two leaders": (
        "leaderElection: {leaseDurationSeconds: 5}",
        "leaderElection.leaseDurationSeconds must be longer than leaderElection.renewDeadlineSeconds",
    ),
    "an address without a host": (
        "health: {bindAddress: '8081'}",
        "health: bindAddress is '8081'; expected host:port",
    ),
    "a duplicate key": ("log: {level: info, level: debug}", "duplicate key 'level'"),
    "a list": ("- a", "the file: expected a section, got array"),
    "no YAML": ("a: [", "not YAML"),
}


@pytest.mark.parametrize(("text", "message"), INVALID.values(), ids=INVALID)
def test_invalid_setting_is_reported_by_key(text: str, message: str) -> None:
    with pytest.raises(InvalidSettings) as rejection:
        parse_settings(text if text.startswith(("-", "a: [")) else IMAGES + text, ControllerManagerSettings)
    assert message in str(rejection.value)


def test_missing_required_setting_is_reported_by_key() -> None:
    with pytest.raises(InvalidSettings, match=r"^images is required$"):
        parse_settings("", ControllerManagerSettings)
    with pytest.raises(InvalidSettings, match=r"^images.placeholder is required$"):
        parse_settings("images: {stock: a}", ControllerManagerSettings)


def test_omitted_settings_have_defaults() -> None:
    expected = ControllerManagerSettings(images=ImageSettings(stock="a", placeholder="b"))
    assert parse_settings(IMAGES, ControllerManagerSettings) == expected
    assert parse_settings(
        IMAGES + "leaderElection: {leaseDurationSeconds: 30}", ControllerManagerSettings
    ).leader_election == (LeaderElectionSettings(lease_duration_seconds=30))


def test_off_is_a_string_and_only_true_and_false_are_booleans() -> None:
    assert parse_settings("authentication: {mode: off}", RuntimeAPISettings).authentication.mode == "off"
    for text, value in (("true", True), ("False", False)):
        assert parse_settings(IMAGES + f"pods: {{requireNonRoot: {text}}}", ControllerManagerSettings).pods == (
            PodSettings(require_non_root=value)
        )
    for text in ("yes", "no", "off", "trueish"):
        with pytest.raises(InvalidSettings, match=r"pods\.requireNonRoot: expected bool, got str"):
            parse_settings(IMAGES + f"pods: {{requireNonRoot: {text}}}", ControllerManagerSettings)


def test_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"none\.yaml: No such file or directory"):
        load_settings(tmp_path / "none.yaml", ControllerManagerSettings)
    (tmp_path / "bad.yaml").write_text("imges: {}")
    with pytest.raises(InvalidSettings, match=r"bad\.yaml: imges is not a setting; did you mean images\?"):
        load_settings(tmp_path / "bad.yaml", ControllerManagerSettings)


@pytest.mark.parametrize(
    ("bind", "host", "port"),
    [(":8081", None, 8081), ("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:8081", "::1", 8081)],
)
def test_bind_address_has_host_and_port(bind: str, host: str | None, port: int) -> None:
    settings = BindAddressSettings(bind_address=bind)
    assert (settings.host, settings.port) == (host, port)
