"""Installs missing Debian packages when a node needs them, and reads facts from apt.

Each installation is shown to the user as a progress step.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from localcluster.errors import MissingRequirement
from localcluster.progress import progress_step

NODE_PACKAGES = {
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "nft": "nftables",
    "nsenter": "util-linux",
    "runc": "runc",
    "unshare": "util-linux",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}
"""The programs that a node needs, and the Debian package of each program."""


def install_missing(programs: Mapping[str, str] = NODE_PACKAGES) -> None:
    """Install the packages of the missing programs, and print a progress step."""
    missing = sorted({package for program, package in programs.items() if not _is_installed(program)})
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise MissingRequirement(
            f"these packages are missing: {', '.join(missing)}. apt-get is not available: install them with the "
            "package manager of this machine."
        )
    if os.geteuid() != 0:
        raise MissingRequirement(
            f"these packages are missing: {', '.join(missing)}. Run `sudo apt-get install {' '.join(missing)}`."
        )
    with progress_step(f"Installing Debian packages: {', '.join(missing)}"):
        _install(missing)


def _is_installed(program: str) -> bool:
    return shutil.which(program) is not None or Path(program).exists()


def _install(packages: list[str]) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        completed = subprocess.run(["apt-get", *command], env=env, capture_output=True, text=True, check=False)
    if completed.returncode:
        print(completed.stderr, file=sys.stderr)
        raise MissingRequirement(
            f"apt-get failed to install {', '.join(packages)}: check that the Debian package archive is reachable."
        )


def package_archive() -> tuple[str, str]:
    """Return the URL of the package archive that apt is configured with, and the code name of its release."""
    completed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    first_line = completed.stdout.split("\n", 1)[0].split()
    if len(first_line) != 2:
        raise MissingRequirement("apt has no package archive configured: add one to /etc/apt/sources.list.")
    return first_line[0], first_line[1]


@functools.cache
def python_version() -> str:
    """Return the Python version of this machine's Debian release, which is also the version in the built images."""
    completed = subprocess.run(["apt-cache", "show", "python3"], capture_output=True, text=True, check=False)
    match = re.search(r"^Version: (\d+\.\d+)", completed.stdout, re.MULTILINE)
    if not match:
        raise MissingRequirement("apt has no package python3: run `apt-get update`.")
    return match[1]
