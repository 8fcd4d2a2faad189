"""Parses the command line and hands over to the process it names."""

import argparse
from collections.abc import Sequence
from importlib.metadata import version


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu-runtime", description="A control plane for GPUs on Kubernetes.")
    parser.add_argument("--version", action="version", version=f"gpu-runtime {version('gpu-runtime')}")
    parser.parse_args(argv)
    parser.print_help()
    return 0
