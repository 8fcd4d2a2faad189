"""Validation of storage mounts: names of storages and mount paths."""

import posixpath
from collections.abc import Sequence
from itertools import combinations

from gpu_runtime.contract.crd.gpu_unit import StorageMount
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors
from gpu_runtime.contract.validation.values import name_errors

MAX_MOUNTS = 16
KERNEL_PATHS = ("/proc", "/sys", "/dev")


def mount_errors(mounts: Sequence[StorageMount], at: str) -> FieldErrors:
    if len(mounts) > MAX_MOUNTS:
        yield FieldError(at, f"has {len(mounts)} items; use at most {MAX_MOUNTS}")
    for index, mount in enumerate(mounts):
        yield from name_errors(mount.name, f"{at}[{index}].name")
        yield from mount_path_errors(mount.mount_path, f"{at}[{index}].mountPath")
    for (i, one), (j, other) in combinations(enumerate(mounts), 2):
        if one.name == other.name:
            text = f"{other.name!r} is already mounted by {at}[{i}]; mount each storage once"
            yield FieldError(f"{at}[{j}].name", text)
        if is_within(one.mount_path, other.mount_path) or is_within(other.mount_path, one.mount_path):
            yield FieldError(
                f"{at}[{j}].mountPath",
                f"{other.mount_path} overlaps {one.mount_path} of {at}[{i}]; use separate paths",
            )


def mount_path_errors(path: str, at: str) -> FieldErrors:
    if not path:
        yield FieldError(at, "is required; give an absolute path")
    elif not path.startswith("/"):
        yield FieldError(at, f"{path!r} is not absolute; begin with '/'")
    elif ":" in path or not path.isprintable():
        yield FieldError(at, f"{path!r} contains ':' or control characters; remove them")
    elif len(path) > 512:
        yield FieldError(at, f"has {len(path)} characters; use at most 512")
    elif ".." in path.split("/"):
        yield FieldError(at, f"{path} contains '..'; write {posixpath.normpath(path)}")
    elif normalize_path(path) == "/":
        yield FieldError(at, "'/' would hide the whole image; use a path below '/'")
    elif any(is_within(path, kernel) for kernel in KERNEL_PATHS):
        yield FieldError(at, f"{path} belongs to the kernel; use a path outside {', '.join(KERNEL_PATHS)}")


def is_within(path: str, parent: str) -> bool:
    path, parent = normalize_path(path), normalize_path(parent)
    return path == parent or path.startswith(parent.rstrip("/") + "/")


def normalize_path(path: str) -> str:
    """Remove duplicate and trailing slashes and '.' from a path.

    A path with '..' and a relative path stay unchanged, so that the validation error shows the caller's path.
    """
    if ".." in path.split("/") or not path.startswith("/"):
        return path
    return "/" + posixpath.normpath(path).lstrip("/")
