"""Writes the generated files under config/, or reports which of them are stale."""

import argparse
import sys
from pathlib import Path

from gpu_runtime.manifests.generate import generated_files
from gpu_runtime.manifests.sync_files import sync_files
from gpu_runtime.manifests.yaml_writer import GENERATED_HEADER


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_runtime.manifests", description=__doc__)
    parser.add_argument("config", type=Path, help="directory of the manifests")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with status 1 if a file is stale")
    options = parser.parse_args()
    expected: dict[Path, str | None] = {options.config / path: text for path, text in generated_files().items()}
    existing = [path for path in options.config.rglob("*.yaml") if path.is_file()]
    for path in sorted(existing):
        if path not in expected and path.read_text(encoding="utf-8").startswith(GENERATED_HEADER):
            expected[path] = None
    return sync_files(expected, options.check, "make manifests")


if __name__ == "__main__":
    sys.exit(main())
