"""The command line reports removed commands."""

import pytest

from gpu_runtime.cli.main import main


@pytest.mark.parametrize("options", [[], ["--config", "x.yaml"], ["--metrics-bind-address=:8080", "-v"]])
def test_removed_manager_command_names_its_replacement(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manager", *options]) == 2
    message = capsys.readouterr().err
    assert "gpu-runtime controller-manager --config FILE" in message
    assert "gpu-runtime runtime-api --config FILE" in message
