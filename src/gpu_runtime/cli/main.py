"""Parses the command line of `gpu-runtime` and runs the selected process."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu-runtime", description="A control plane for GPUs on Kubernetes.")
    parser.add_argument("--version", action="version", version=f"gpu-runtime {version('gpu-runtime')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_process_command(
        commands, "controller-manager", _controller_manager, "reconcile GPU units, GPU storages and stock pools"
    )
    _add_process_command(commands, "runtime-api", _runtime_api, "serve the HTTP API")
    _add_process_command(commands, "result-store", _result_store, "store invocation results and serve queries for them")
    _add_process_command(
        commands, "worker-sidecar", _worker_sidecar, "pull the invocations of a function for the worker in this pod"
    )
    _add_process_command(commands, "activator", _activator, "dispatch invocations and scale the workers of functions")
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["manager"]:  # before parsing, so that every option of the removed command is accepted
        return _report_removed_command()
    options = parser.parse_args(arguments)
    run: Callable[[Path], int] = options.run
    return run(options.config)


def _add_process_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, run: Callable[[Path], int], summary: str
) -> None:
    command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    command.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML file with the settings")
    command.set_defaults(run=run)


def _report_removed_command() -> int:
    """Report the replacement of `gpu-runtime manager`, which existing scripts may still call."""
    sys.stderr.write(
        "error: the command 'manager' was removed. Run these two processes instead:\n"
        "  gpu-runtime controller-manager --config FILE\n"
        "  gpu-runtime runtime-api --config FILE\n"
    )
    return 2


# A command imports its process when it runs, because one process does not need the dependencies of another.


def _controller_manager(config: Path) -> int:
    from gpu_runtime.controller_manager.main import run_controller_manager  # noqa: PLC0415
    from gpu_runtime.controller_manager.settings import ControllerManagerSettings  # noqa: PLC0415
    from gpu_runtime.process.runner import run_process  # noqa: PLC0415

    return run_process(config, ControllerManagerSettings, run_controller_manager)


def _runtime_api(config: Path) -> int:
    from gpu_runtime.process.runner import run_process  # noqa: PLC0415
    from gpu_runtime.runtime_api.main import serve  # noqa: PLC0415
    from gpu_runtime.runtime_api.settings import RuntimeAPISettings  # noqa: PLC0415

    return run_process(config, RuntimeAPISettings, serve)


def _result_store(config: Path) -> int:
    from gpu_runtime.process.runner import run_process  # noqa: PLC0415
    from gpu_runtime.result_store.main import run_result_store  # noqa: PLC0415
    from gpu_runtime.result_store.settings import ResultStoreSettings  # noqa: PLC0415

    return run_process(config, ResultStoreSettings, run_result_store)


def _worker_sidecar(config: Path) -> int:
    from gpu_runtime.process.runner import run_process  # noqa: PLC0415
    from gpu_runtime.worker_sidecar.main import serve  # noqa: PLC0415
    from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings  # noqa: PLC0415

    return run_process(config, WorkerSidecarSettings, serve)


def _activator(config: Path) -> int:
    from gpu_runtime.activator.main import run_activator  # noqa: PLC0415
    from gpu_runtime.activator.settings import ActivatorSettings  # noqa: PLC0415
    from gpu_runtime.process.runner import run_process  # noqa: PLC0415

    return run_process(config, ActivatorSettings, run_activator)
