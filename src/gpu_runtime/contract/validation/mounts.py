"""Storage mounts: which storages, at which paths."""

import posixpath
from collections.abc import Sequence
from itertools import combinations

from gpu_runtime.contract.crd.gpu_unit import StorageMount
from gpu_runtime.contract.validation.field_error import Problem, Problems
from gpu_runtime.contract.validation.values import name_problems

MOUNT_LIMIT = 16
KERNEL_PATHS = ("/proc", "/sys", "/dev")


def mount_problems(mounts: Sequence[StorageMount], at: str) -> Problems:
    if len(mounts) > MOUNT_LIMIT:
        yield Problem(at, f"has {len(mounts)} items; use at most {MOUNT_LIMIT}")
    for index, mount in enumerate(mounts):
        yield from name_problems(mount.name, f"{at}[{index}].name")
        yield from mount_path_problems(mount.mount_path, f"{at}[{index}].mountPath")
    for (i, one), (j, other) in combinations(enumerate(mounts), 2):
        if one.name == other.name:
            yield Problem(f"{at}[{j}].name", f"{other.name!r} is already mounted by {at}[{i}]; mount a storage once")
        if within(one.mount_path, other.mount_path) or within(other.mount_path, one.mount_path):
            yield Problem(
                f"{at}[{j}].mountPath",
                f"{other.mount_path} overlaps {one.mount_path} of {at}[{i}]; one would hide the other",
            )


def mount_path_problems(path: str, at: str) -> Problems:
    if not path:
        yield Problem(at, "is required; give an absolute path")
    elif not path.startswith("/"):
        yield Problem(at, f"{path!r} is not absolute; begin with '/'")
    elif ":" in path or not path.isprintable():
        yield Problem(at, f"{path!r} contains ':' or control characters")
    elif len(path) > 512:
        yield Problem(at, f"has {len(path)} characters; use at most 512")
    elif ".." in path.split("/"):
        yield Problem(at, f"{path} contains '..'; write {posixpath.normpath(path)}")
    elif normal_path(path) == "/":
        yield Problem(at, "'/' would hide the whole image; mount below it")
    elif any(within(path, kernel) for kernel in KERNEL_PATHS):
        yield Problem(at, f"{path} belongs to the kernel; mount elsewhere")


def within(path: str, parent: str) -> bool:
    path, parent = normal_path(path), normal_path(parent)
    return path == parent or path.startswith(parent.rstrip("/") + "/")


def normal_path(path: str) -> str:
    """One spelling for every path to the same place. What climbs with '..' stays as it is, for validation to name."""
    if ".." in path.split("/") or not path.startswith("/"):
        return path
    return "/" + posixpath.normpath(path).lstrip("/")
