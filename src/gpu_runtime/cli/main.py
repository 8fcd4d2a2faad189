"""Parses the command line and hands over to the process it names."""

import argparse
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu-runtime", description="A control plane for GPUs on Kubernetes.")
    parser.add_argument("--version", action="version", version=f"gpu-runtime {version('gpu-runtime')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _process(commands, "controller-manager", _controller_manager, "keep units and pools true")
    options = parser.parse_args(argv)
    run: Callable[[Path], int] = options.run
    return run(options.config)


def _process(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, run: Callable[[Path], int], about: str
) -> None:
    command = commands.add_parser(name, help=about, description=about.capitalize() + ".")
    command.add_argument("--config", type=Path, required=True, metavar="FILE", help="the process's settings, as YAML")
    command.set_defaults(run=run)


# A process is imported when it is run: one process does not need another's dependencies.


def _controller_manager(config: Path) -> int:
    from gpu_runtime.controller_manager.main import manage  # noqa: PLC0415
    from gpu_runtime.controller_manager.settings import ControllerManagerSettings  # noqa: PLC0415
    from gpu_runtime.process.lifecycle import run_process  # noqa: PLC0415

    return run_process(config, ControllerManagerSettings, manage)
