"""What comes from Debian's packages, installed on first need and never silently."""

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
"""Programs of the node shape and the package each one comes from."""


def install_missing(programs: Mapping[str, str] = NODE_PACKAGES) -> None:
    """Install the packages of the programs that are missing, saying so."""
    missing = sorted({package for program, package in programs.items() if not _is_installed(program)})
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise MissingRequirement(
            f"this machine lacks {', '.join(missing)} and has no apt-get: install them with its package manager."
        )
    if os.geteuid() != 0:
        raise MissingRequirement(
            f"this machine lacks {', '.join(missing)}: run `sudo apt-get install {' '.join(missing)}`."
        )
    with progress_step(f"Installing {', '.join(missing)} from Debian's packages"):
        _install(missing)


def _is_installed(program: str) -> bool:
    return shutil.which(program) is not None or Path(program).exists()


def _install(packages: list[str]) -> None:
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", *command], env=quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise MissingRequirement(
            f"apt-get could not install {', '.join(packages)}: make Debian's package archive reachable."
        )


def package_archive() -> tuple[str, str]:
    """The package archive that this machine uses, and its release."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    first = said.stdout.split("\n", 1)[0].split()
    if len(first) != 2:
        raise MissingRequirement("apt has no package archive configured: add one to /etc/apt/sources.list.")
    return first[0], first[1]


def python_version() -> str:
    """The Python of this machine's Debian release, and so of the images made from it."""
    said = subprocess.run(["apt-cache", "show", "python3"], capture_output=True, text=True, check=False)
    match = re.search(r"^Version: (\d+\.\d+)", said.stdout, re.MULTILINE)
    if not match:
        raise MissingRequirement("apt does not know python3: run `apt-get update`.")
    return match[1]
