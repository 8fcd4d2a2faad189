"""Writes the OpenAPI document of the runtime API, or reports that it is stale."""

import argparse
import sys
from pathlib import Path

from gpu_runtime.runtime_api.http.openapi import openapi_document, serialize_document
from gpu_runtime.runtime_api.openapi_routes import documented_routes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_runtime.manifests.write_openapi", description=__doc__)
    parser.add_argument("file", type=Path, help="path of the OpenAPI document")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with status 1 if the file is stale")
    options = parser.parse_args()
    expected = serialize_document(openapi_document(documented_routes()))
    if options.check:
        return _report_stale(options.file, expected)
    options.file.parent.mkdir(parents=True, exist_ok=True)
    options.file.write_bytes(expected)
    return 0


def _report_stale(file: Path, expected: bytes) -> int:
    if file.exists() and file.read_bytes() == expected:
        return 0
    sys.stderr.write(f"{file} is stale: run `make swagger` and commit the result\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
