"""Every process has a command, and the command needs the settings file of the process."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from gpu_runtime.cli.main import main
from gpu_runtime.runtime_api.http.route import Caller, Scope
from gpu_runtime.runtime_api.http.token_entries import TokenList, parse_tokens

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


def test_tokens_create_prints_an_entry_that_accepts_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "create", "--name", "shop", "--scopes", "runtime,operator", "--expires-in", "90d"]) == 0
    printed = capsys.readouterr()
    token = printed.err.splitlines()[-1]
    parsed = parse_tokens(TokenList(tokens=tuple(yaml.safe_load(printed.out))))
    known = parsed.find(token)
    assert known
    assert known.caller == Caller("token:shop", frozenset({Scope.RUNTIME, Scope.OPERATOR}))
    assert known.expires_at
    assert timedelta(days=89) < known.expires_at - datetime.now(UTC) <= timedelta(days=90)
    assert token not in printed.out
    assert len(token) == 43


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name", "a", "--scopes", "root"], "scopes[0]: 'root' is not one of operator, runtime, worker"),
        (["--name", "", "--scopes", "runtime"], "name: expected"),
        (["--name", "a", "--scopes", "runtime", "--expires-in", "soon"], "'soon' is not a time such as 90d"),
        (["--name", "a", "--scopes", "runtime", "--expires-in", "9999999d"], "up to 3650d"),
    ],
)
def test_tokens_create_with_invalid_arguments_prints_no_token(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tokens", "create", *arguments]) == 2
    printed = capsys.readouterr()
    assert (printed.out, message in printed.err) == ("", True)
    assert len(printed.err.splitlines()) == 1
