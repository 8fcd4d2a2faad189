"""Every process has a command, and the command needs the settings file of the process."""

from pathlib import Path

import pytest

from gpu_runtime.cli.main import main

PROCESSES = ("controller-manager", "runtime-api", "result-store", "worker-sidecar", "activator")


@pytest.mark.parametrize("process", PROCESSES)
def test_command_of_a_process_reads_its_settings_file(
    process: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("noSuchSetting: 1\n")
    assert main([process, "--config", str(settings)]) == 2
    assert f"{settings}: noSuchSetting is not a setting" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["runtime-api"]])
def test_incomplete_command_line_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    assert exited.value.code == 2
    assert "usage: gpu-runtime" in capsys.readouterr().err
