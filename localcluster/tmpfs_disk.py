"""Provides small tmpfs disks that tests can fill. A disk is visible only to the processes of one supervisor, and the
kernel removes it when the supervisor exits."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import MissingRequirement
from localcluster.supervisor_client import SupervisorClient

MOUNT_SCRIPT = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'


def tmpfs_command(folder: Path, size: str) -> Sequence[str]:
    """Return a command that runs the supervisor in a mount namespace in which the folder is a disk of this size."""
    if os.geteuid() != 0:
        raise MissingRequirement("a tmpfs disk needs root: run the command with sudo.")
    folder.mkdir(parents=True, exist_ok=True)
    return ["unshare", "--mount", "--propagation=private", "--", "sh", "-c", MOUNT_SCRIPT, "sh", size, str(folder)]


@dataclass(frozen=True)
class TmpfsDisk:
    processes: SupervisorClient
    folder: Path

    @property
    def _filler(self) -> Path:
        return Path(f"/proc/{self.processes.supervisor_pid()}/root{self.folder}/filler")

    def fill(self) -> None:
        """Fill the disk completely, to the last byte."""
        with self._filler.open("ab", buffering=0) as filler:
            for size in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while filler.write(bytes(size)):
                        pass

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)
