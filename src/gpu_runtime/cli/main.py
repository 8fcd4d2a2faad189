"""Parses the command line of `gpu-runtime` and runs the selected process or command."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from gpu_runtime.cli.functions_command import add_functions_command
from gpu_runtime.cli.token_commands import add_tokens_command
from gpu_runtime.cli.unit_commands import add_units_command

PROCESSES: Mapping[str, str] = MappingProxyType(
    {
        "controller-manager": "reconcile GPU units, GPU storages and stock pools",
        "runtime-api": "serve the HTTP API",
        "result-store": "store invocation results and serve queries for them",
        "worker-sidecar": "pull the invocations of a function for the worker in this pod",
        "activator": "dispatch invocations and scale the workers of functions",
    }
)
"""The commands and their summaries. The package of a process has the name of its command."""


def main(argv: Sequence[str] | None = None) -> int:
    if os.getpid() == 1:
        # The kernel does not deliver a signal without a handler to the first process of a container. The selected
        # process replaces this handler when it has started.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog="gpu-runtime", description="A control plane for GPUs on Kubernetes.")
    parser.add_argument("--version", action="version", version=f"gpu-runtime {version('gpu-runtime')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="process")
    for name, summary in PROCESSES.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        command.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML file with the settings")
    add_tokens_command(commands)
    add_functions_command(commands)
    add_units_command(commands)
    options = parser.parse_args(argv)
    # Only the selected process is imported, because one process does not need the dependencies of another.
    if options.process not in PROCESSES:
        run_command: Callable[[argparse.Namespace], int]
        run_command = importlib.import_module(f"gpu_runtime.cli.{options.command}").run
        return run_command(options)
    module = importlib.import_module(f"gpu_runtime.{options.process.replace('-', '_')}.main")
    run: Callable[[Path], int] = module.main
    return run(options.config)
