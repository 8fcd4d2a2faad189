"""The folders of the project, of its local state, and of the per-user cache of expensive build results."""

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
    """Raise an error before the work starts if the disk would be too small for it."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(existing).free / 1e9
    if free < gigabytes:
        raise MissingRequirement(
            f"{purpose} needs {gigabytes:g} GB of disk space at {existing}, but only {free:.1f} GB are free: "
            f"delete files, or set XDG_CACHE_HOME to a folder on a larger disk."
        )


def remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def scratch_dir(kind: str, discard: Callable[[Path], None] = remove_tree) -> Iterator[Path]:
    """Create a folder that exists as long as the context, and remove the folders whose owner process was killed."""
    base = LOCAL_STATE_DIR / kind
    base.mkdir(parents=True, exist_ok=True)
    with (base / ".lock").open("w") as cleanup_lock:
        fcntl.flock(cleanup_lock, fcntl.LOCK_EX)
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
    """Return the file that the owner process keeps locked. The kernel releases the lock when the process exits."""
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
