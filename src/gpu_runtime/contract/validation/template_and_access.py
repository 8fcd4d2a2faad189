"""Validation of the container template and of the access block: environment variables, ports, primary port."""

from collections.abc import Iterable

from gpu_runtime.contract.crd.gpu_unit import ACCESS_SCHEMES, Access
from gpu_runtime.contract.crd.template import (
    ENV_NAME_PATTERN,
    MAX_ENV_NAME_LENGTH,
    MAX_ENV_VALUE_LENGTH,
    MAX_PORT_NAME_LENGTH,
    PORT_NAME_PATTERN,
    PORT_PROTOCOLS,
    EnvVar,
    Port,
    Template,
)
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors, child_path
from gpu_runtime.contract.validation.values import count_errors, matches

MAX_TEMPLATE_ITEMS = {"command": 256, "args": 256, "envs": 256, "ports": 32}


def template_errors(template: Template, at: str) -> FieldErrors:
    for field, maximum in MAX_TEMPLATE_ITEMS.items():
        count = len(getattr(template, field))
        if count > maximum:
            yield FieldError(child_path(at, field), f"has {count} items; use at most {maximum}")
    yield from env_errors(template.envs, child_path(at, "envs"))
    yield from port_errors(template.ports, child_path(at, "ports"))


def env_errors(envs: Iterable[EnvVar], at: str) -> FieldErrors:
    seen: dict[str, int] = {}
    for index, env in enumerate(envs):
        path = f"{at}[{index}].name"
        if not _is_env_name(env.name):
            yield FieldError(
                path,
                f"{env.name!r} is not a name of an environment variable; use letters, digits, '_', '-' and '.', and"
                " do not begin with a digit or '..'",
            )
        elif len(env.name) > MAX_ENV_NAME_LENGTH:
            yield FieldError(path, f"has {len(env.name)} characters; use at most {MAX_ENV_NAME_LENGTH}")
        elif env.name in seen:
            yield FieldError(path, f"{env.name} is already set by {at}[{seen[env.name]}]; remove one of them")
        if "\0" in env.value:
            yield FieldError(f"{at}[{index}].value", "contains a NUL character, which Linux does not allow; remove it")
        elif len(env.value) > MAX_ENV_VALUE_LENGTH:
            yield FieldError(
                f"{at}[{index}].value", f"has {len(env.value)} characters; use at most {MAX_ENV_VALUE_LENGTH}"
            )
        seen.setdefault(env.name, index)


def _is_env_name(name: str) -> bool:
    """Whether the oldest supported Kubernetes version allows the name. Newer versions allow more characters."""
    return matches(ENV_NAME_PATTERN, name) and name != "." and not name.startswith("..")


def port_errors(ports: Iterable[Port], at: str) -> FieldErrors:
    names: dict[str, int] = {}
    numbers: dict[tuple[int, str], int] = {}
    for index, port in enumerate(ports):
        path = f"{at}[{index}]"
        yield from _single_port_errors(port, path)
        if port.name in names:
            other = f"{at}[{names[port.name]}]"
            yield FieldError(f"{path}.name", f"{port.name!r} is already the name of {other}; use another name")
        if (port.port, port.protocol) in numbers:
            other = f"{at}[{numbers[port.port, port.protocol]}]"
            text = f"{port.port}/{port.protocol} is already the port of {other}; use another port or protocol"
            yield FieldError(f"{path}.port", text)
        names.setdefault(port.name, index)
        numbers.setdefault((port.port, port.protocol), index)


def _single_port_errors(port: Port, path: str) -> FieldErrors:
    if not _is_port_name(port.name):
        yield FieldError(
            f"{path}.name",
            f"{port.name!r} is not a port name; use at most {MAX_PORT_NAME_LENGTH} lower-case letters, digits and"
            " single '-', with at least one letter and no '-' at either end",
        )
    yield from count_errors(port.port, f"{path}.port", 1, 65535)
    if port.protocol not in PORT_PROTOCOLS:
        yield FieldError(f"{path}.protocol", f"{port.protocol!r} is not one of {', '.join(PORT_PROTOCOLS)}")


def _is_port_name(name: str) -> bool:
    """Whether the name is an IANA service name. Kubernetes requires this for the names of container ports."""
    matches_pattern = len(name) <= MAX_PORT_NAME_LENGTH and matches(PORT_NAME_PATTERN, name)
    return matches_pattern and "--" not in name and any(character.isalpha() for character in name)


def access_errors(access: Access, ports: tuple[Port, ...], at: str) -> FieldErrors:
    if access.scheme not in ACCESS_SCHEMES:
        yield FieldError(child_path(at, "scheme"), f"{access.scheme!r} is not one of {', '.join(ACCESS_SCHEMES)}")
    if not access.primary_port:
        return
    primary = next((port for port in ports if port.name == access.primary_port), None)
    if primary is None:
        names = ", ".join(port.name for port in ports) or "none"
        text = f"{access.primary_port!r} is not the name of a port in template.ports; the names there: {names}"
        yield FieldError(child_path(at, "primaryPort"), text)
    elif primary.protocol != "TCP":
        yield FieldError(
            child_path(at, "primaryPort"), f"{access.primary_port!r} is a {primary.protocol} port; choose a TCP port"
        )
