"""Where things live: the project, its local state, and the per-user cache of what is expensive to make."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.errors import MissingRequirement

PROJECT_ROOT = Path(__file__).resolve().parent.parent
LOCAL_STATE_DIR = Path(os.environ.get("GPU_RUNTIME_LOCAL_STATE_DIR") or PROJECT_ROOT / ".local")


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpu-runtime"


def require_free_disk(path: Path, gigabytes: float, purpose: str) -> None:
    """Refuse before the work starts rather than fail in the middle of it."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(existing).free / 1e9
    if free < gigabytes:
        raise MissingRequirement(
            f"{purpose} needs {gigabytes:g} GB of disk at {existing} and {free:.1f} GB are free: "
            f"free some, or point XDG_CACHE_HOME to a larger disk."
        )


def remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def scratch_dir(kind: str, discard: Callable[[Path], None] = remove_tree) -> Iterator[Path]:
    """A folder for a cluster that lives as long as its owner, and the end of those whose owners were killed."""
    base = LOCAL_STATE_DIR / kind
    base.mkdir(parents=True, exist_ok=True)
    with (base / ".lock").open("w") as sweeping:
        fcntl.flock(sweeping, fcntl.LOCK_EX)
        for orphan in base.iterdir():
            if orphan.is_dir() and not _has_live_owner(orphan):
                discard(orphan)
        folder = Path(tempfile.mkdtemp(prefix="", dir=base))
        owner = _owner_lock_file(folder).open("w")
        fcntl.flock(owner, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        discard(folder)
        owner.close()


def _owner_lock_file(folder: Path) -> Path:
    """A file that the owner holds locked; the kernel lets go of it when the owner dies, however that happens."""
    return folder / "owner"


def _has_live_owner(folder: Path) -> bool:
    try:
        with _owner_lock_file(folder).open() as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
