"""`gpu-runtime` of a later version, which has one more pod profile.

A separate program: `python -m tests.integration.controller_manager.next_profile_program controller-manager …`.
"""

import sys
from dataclasses import replace

from gpu_runtime.cli.main import main
from gpu_runtime.controller_manager.workload import pod_profile

if __name__ == "__main__":
    latest = pod_profile.latest_profile()
    following = replace(
        latest, version=latest.version + 1, dropped_capabilities=(*latest.dropped_capabilities, "SYS_CHROOT")
    )
    pod_profile.POD_PROFILES += (following,)
    sys.exit(main(sys.argv[1:]))
