"""Writes the OpenAPI document of the runtime API, or reports that it is stale."""

import argparse
import sys
from pathlib import Path

from gpu_runtime.manifests.sync_files import sync_files
from gpu_runtime.runtime_api.http.openapi import openapi_document, serialize_document
from gpu_runtime.runtime_api.openapi_routes import documented_routes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_runtime.manifests.write_openapi", description=__doc__)
    parser.add_argument("file", type=Path, help="path of the OpenAPI document")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with status 1 if the file is stale")
    options = parser.parse_args()
    text = serialize_document(openapi_document(documented_routes())).decode()
    return sync_files({options.file: text}, options.check, "make swagger")


if __name__ == "__main__":
    sys.exit(main())
