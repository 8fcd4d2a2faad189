"""Validation of the mounts of storages and Secrets: names and mount paths."""

import posixpath
from collections.abc import Sequence
from itertools import combinations

from gpu_runtime.contract.crd.gpu_unit import StorageMount
from gpu_runtime.contract.crd.template import SecretMount
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors, child_path
from gpu_runtime.contract.validation.values import name_errors

MAX_MOUNTS = 16
KERNEL_PATHS = ("/proc", "/sys", "/dev")


def mount_errors(storages: Sequence[StorageMount], secrets: Sequence[SecretMount], at: str) -> FieldErrors:
    """Yield the errors of the mounts of a spec. The template reports the names and the number of Secrets.

    The mounts are compared with each other, so a list that is too long is not examined further.
    """
    storages_at, secrets_at = child_path(at, "storageMounts"), child_path(at, "template.secretMounts")
    if len(storages) > MAX_MOUNTS:
        yield FieldError(storages_at, f"has {len(storages)} items; use at most {MAX_MOUNTS}")
    if len(storages) > MAX_MOUNTS or len(secrets) > MAX_MOUNTS:
        return
    for index, mount in enumerate(storages):
        yield from name_errors(mount.name, f"{storages_at}[{index}].name")
    yield from _repeated_name_errors(storages, storages_at, "storage")
    yield from _repeated_name_errors(secrets, secrets_at, "Secret")
    placed = [(f"{storages_at}[{index}]", each.mount_path) for index, each in enumerate(storages)]
    placed += [(f"{secrets_at}[{index}]", each.mount_path) for index, each in enumerate(secrets)]
    for path, mount_path in placed:
        yield from mount_path_errors(mount_path, f"{path}.mountPath")
    yield from _overlap_errors(placed)


def _repeated_name_errors(mounts: Sequence[StorageMount | SecretMount], at: str, kind: str) -> FieldErrors:
    for (i, one), (j, other) in combinations(enumerate(mounts), 2):
        if one.name == other.name:
            yield FieldError(
                f"{at}[{j}].name", f"{other.name!r} is already mounted by {at}[{i}]; mount each {kind} once"
            )


def _overlap_errors(placed: Sequence[tuple[str, str]]) -> FieldErrors:
    normalized = [(path, mount_path, normalize_path(mount_path)) for path, mount_path in placed]
    for (earlier, shown, one), (later, other_shown, other) in combinations(normalized, 2):
        if _contains(one, other) or _contains(other, one):
            yield FieldError(f"{later}.mountPath", f"{other_shown} overlaps {shown} of {earlier}; use separate paths")


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
    return _contains(normalize_path(parent), normalize_path(path))


def _contains(parent: str, path: str) -> bool:
    return path == parent or path.startswith(parent.rstrip("/") + "/")


def normalize_path(path: str) -> str:
    """Remove duplicate and trailing slashes and '.' from a path.

    A path with '..' and a relative path stay unchanged, so that the validation error shows the caller's path.
    """
    if ".." in path.split("/") or not path.startswith("/"):
        return path
    return "/" + posixpath.normpath(path).lstrip("/")
