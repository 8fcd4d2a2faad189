"""The template and the access to it: environment, ports, primary port."""

from collections.abc import Iterable

from gpu_runtime.contract.crd.gpu_unit import SCHEMES, Access
from gpu_runtime.contract.crd.template import (
    ENV_NAME_LIMIT,
    ENV_NAME_PATTERN,
    ENV_VALUE_LIMIT,
    PORT_NAME_LIMIT,
    PORT_NAME_PATTERN,
    PROTOCOLS,
    EnvVar,
    Port,
    Template,
)
from gpu_runtime.contract.validation.field_error import Problem, Problems, under
from gpu_runtime.contract.validation.values import count_problems, matches

ITEM_LIMITS = {"command": 256, "args": 256, "envs": 256, "ports": 32}


def template_problems(template: Template, at: str) -> Problems:
    for field, most in ITEM_LIMITS.items():
        count = len(getattr(template, field))
        if count > most:
            yield Problem(under(at, field), f"has {count} items; use at most {most}")
    yield from env_problems(template.envs, under(at, "envs"))
    yield from port_problems(template.ports, under(at, "ports"))


def env_problems(envs: Iterable[EnvVar], at: str) -> Problems:
    seen: dict[str, int] = {}
    for index, env in enumerate(envs):
        path = f"{at}[{index}].name"
        if not _is_env_name(env.name):
            yield Problem(
                path,
                f"{env.name!r} is not an environment variable; use letters, digits, '_', '-' and '.', not beginning"
                " with a digit or '..'",
            )
        elif len(env.name) > ENV_NAME_LIMIT:
            yield Problem(path, f"has {len(env.name)} characters; use at most {ENV_NAME_LIMIT}")
        elif env.name in seen:
            yield Problem(path, f"{env.name} is already set by {at}[{seen[env.name]}]; keep one of them")
        if "\0" in env.value:
            yield Problem(f"{at}[{index}].value", "contains a NUL character, which no environment can hold")
        elif len(env.value) > ENV_VALUE_LIMIT:
            yield Problem(f"{at}[{index}].value", f"has {len(env.value)} characters; use at most {ENV_VALUE_LIMIT}")
        seen.setdefault(env.name, index)


def _is_env_name(name: str) -> bool:
    """As every supported Kubernetes has it: newer ones take more characters, older ones do not."""
    return matches(ENV_NAME_PATTERN, name) and name != "." and not name.startswith("..")


def port_problems(ports: Iterable[Port], at: str) -> Problems:
    names: dict[str, int] = {}
    numbers: dict[tuple[int, str], int] = {}
    for index, port in enumerate(ports):
        path = f"{at}[{index}]"
        yield from _port_alone_problems(port, path)
        if port.name in names:
            yield Problem(f"{path}.name", f"{port.name!r} is already the name of {at}[{names[port.name]}]")
        if (port.port, port.protocol) in numbers:
            other = f"{at}[{numbers[port.port, port.protocol]}]"
            yield Problem(f"{path}.port", f"{port.port}/{port.protocol} is already the port of {other}")
        names.setdefault(port.name, index)
        numbers.setdefault((port.port, port.protocol), index)


def _port_alone_problems(port: Port, path: str) -> Problems:
    if not _is_port_name(port.name):
        yield Problem(
            f"{path}.name",
            f"{port.name!r} is not a port name; use at most {PORT_NAME_LIMIT} lower-case letters, digits and single"
            " '-', with a letter among them and no '-' at an end",
        )
    yield from count_problems(port.port, f"{path}.port", 1, 65535)
    if port.protocol not in PROTOCOLS:
        yield Problem(f"{path}.protocol", f"{port.protocol!r} is not one of {', '.join(PROTOCOLS)}")


def _is_port_name(name: str) -> bool:
    """An IANA service name, as containers need it."""
    fits = len(name) <= PORT_NAME_LIMIT and matches(PORT_NAME_PATTERN, name)
    return fits and "--" not in name and any(character.isalpha() for character in name)


def access_problems(access: Access, ports: tuple[Port, ...], at: str) -> Problems:
    if access.scheme not in SCHEMES:
        yield Problem(under(at, "scheme"), f"{access.scheme!r} is not one of {', '.join(SCHEMES)}")
    if not access.primary_port:
        return
    primary = next((port for port in ports if port.name == access.primary_port), None)
    if primary is None:
        known = ", ".join(port.name for port in ports) or "none"
        yield Problem(
            under(at, "primaryPort"), f"{access.primary_port!r} names no port of the template (it has {known})"
        )
    elif primary.protocol != "TCP":
        yield Problem(
            under(at, "primaryPort"), f"{access.primary_port!r} is a {primary.protocol} port; choose a TCP port"
        )
