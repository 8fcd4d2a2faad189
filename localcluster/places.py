"""Where things live: the project, its local state, and the per-user cache of what is expensive to make."""

import os
import shutil
from pathlib import Path

from localcluster.unmet import Unmet

PROJECT = Path(__file__).resolve().parent.parent
LOCAL = PROJECT / ".local"


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpu-runtime"


def require_disk(path: Path, gigabytes: float, purpose: str) -> None:
    """Refuse before the work starts rather than fail in the middle of it."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(existing).free / 1e9
    if free < gigabytes:
        raise Unmet(
            f"{purpose} needs {gigabytes:g} GB of disk at {existing} and {free:.1f} GB are free: "
            f"free some, or point XDG_CACHE_HOME to a larger disk."
        )
