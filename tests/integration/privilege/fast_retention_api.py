"""The runtime API with an eviction interval for operations of one second instead of one minute.

A separate program: `python -m tests.integration.privilege.fast_retention_api SETTINGS`.
"""

import sys
from pathlib import Path

from gpu_runtime.process.runner import run_process
from gpu_runtime.runtime_api import main
from gpu_runtime.runtime_api.operations import operation_retention
from gpu_runtime.runtime_api.settings import RuntimeAPISettings

if __name__ == "__main__":
    operation_retention.EVICTION_INTERVAL_SECONDS = 1.0
    sys.exit(run_process(Path(sys.argv[1]), RuntimeAPISettings, main.run_runtime_api))
