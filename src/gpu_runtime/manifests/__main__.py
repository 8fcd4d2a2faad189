"""Writes the generated files under config/, or reports which of them are stale."""

import argparse
import sys
from pathlib import Path

from gpu_runtime.manifests.generate import generated_files
from gpu_runtime.manifests.yaml_writer import GENERATED_HEADER


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_runtime.manifests", description=__doc__)
    parser.add_argument("config", type=Path, help="directory of the manifests")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with status 1 if a file is stale")
    options = parser.parse_args()
    expected = {options.config / path: text for path, text in generated_files().items()}
    stale = [path for path, text in expected.items() if _read(path) != text]
    orphans = [path for path in _existing_generated_files(options.config) if path not in expected]
    if options.check:
        return _report_stale([*stale, *orphans])
    for path in orphans:
        path.unlink()
    for path in stale:
        _write(path, expected[path])
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _existing_generated_files(config: Path) -> list[Path]:
    files = [path for path in sorted(config.rglob("*.yaml")) if path.is_file()]
    return [path for path in files if path.read_text(encoding="utf-8").startswith(GENERATED_HEADER)]


def _report_stale(stale: list[Path]) -> int:
    for path in stale:
        sys.stderr.write(f"{path} is stale: run `make manifests` and commit the result\n")
    return 1 if stale else 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
