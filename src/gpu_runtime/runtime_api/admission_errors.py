"""Checks that the admission of every resource shares: the allowed namespaces, and one report of all errors. Pure."""

from collections.abc import Sequence

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.validation import FieldError
from gpu_runtime.contract.validation.field_error import FieldErrors


def require_valid(*errors: FieldError) -> None:
    """Raise Invalid with all errors, if there are any."""
    if errors:
        raise Invalid(tuple(dict.fromkeys(errors)))


def resolve_namespace(namespace: str, allowed: Sequence[str], resources: str) -> str:
    """Return the requested namespace, or the first allowed namespace if the request has none. Raises Invalid."""
    require_valid(*namespace_errors(namespace, allowed, resources))
    return namespace or allowed[0]


def listed_namespaces(namespace: str, allowed: Sequence[str], resources: str) -> Sequence[str]:
    """Return the requested namespace, or all allowed namespaces if the request has none. Raises Invalid."""
    return (resolve_namespace(namespace, allowed, resources),) if namespace else allowed


def namespace_errors(namespace: str, allowed: Sequence[str], resources: str) -> FieldErrors:
    if namespace and namespace not in allowed:
        text = f"{namespace!r} is not allowed for {resources}; use {' or '.join(allowed)}, or omit it"
        yield FieldError("namespace", text)
