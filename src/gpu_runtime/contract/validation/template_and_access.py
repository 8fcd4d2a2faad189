"""Validation of the container template and of the access block: environment variables, ports, primary port."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gpu_runtime.contract.crd.gpu_unit import ACCESS_SCHEMES, Access
from gpu_runtime.contract.crd.probes import Probes
from gpu_runtime.contract.crd.template import (
    ENV_NAME_PATTERN,
    IMAGE_PULL_POLICIES,
    MAX_ENV_NAME_LENGTH,
    MAX_ENV_VALUE_LENGTH,
    MAX_PORT_NAME_LENGTH,
    MAX_TEMPLATE_BYTES,
    MAX_USER_ID,
    PORT_NAME_PATTERN,
    PORT_PROTOCOLS,
    EnvVar,
    InitCommand,
    Port,
    SecretMount,
    Template,
    selects_devices,
)
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors, child_path
from gpu_runtime.contract.validation.pod_policy import PodPolicy
from gpu_runtime.contract.validation.values import (
    bytes_errors,
    count_errors,
    matches,
    secret_key_errors,
    secret_name_errors,
)

MAX_ARGS = 256
MAX_PATH_LENGTH = 512
NUL_TEXT = "contains a NUL character, which Linux does not allow; remove it"


def size_errors(part: Template | Probes, at: str) -> FieldErrors:
    """Check the size of a part of a spec. Several Kubernetes objects of a unit contain this part."""
    size = len(msgspec.json.encode(part))
    if size > MAX_TEMPLATE_BYTES:
        limit = f"use at most {MAX_TEMPLATE_BYTES}, and put large data into the image or a storage"
        yield FieldError(at, f"has {size} bytes as JSON; {limit}")


def template_errors(template: Template, at: str, policy: PodPolicy) -> FieldErrors:
    init = template.init or InitCommand()
    yield from size_errors(template, at)
    yield from args_errors(template.command, child_path(at, "command"))
    yield from args_errors(template.args, child_path(at, "args"))
    yield from args_errors(init.command, child_path(at, "init.command"))
    yield from args_errors(init.args, child_path(at, "init.args"))
    yield from _list_errors(template, at)
    yield from container_errors(template, at)
    yield from pod_policy_errors(template, policy, at)


def _list_errors(template: Template, at: str) -> FieldErrors:
    """Yield the errors of the lists of structs and names. The items of a list that is too long are not examined."""
    lists: tuple[tuple[str, Sequence[Any], int, Callable[[Any, str], FieldErrors]], ...] = (
        ("envs", template.envs, 256, env_errors),
        ("ports", template.ports, 32, port_errors),
        ("imagePullSecrets", template.image_pull_secrets, 8, pull_secret_errors),
        ("secretMounts", template.secret_mounts, 16, secret_mount_errors),
    )
    for field, items, maximum, item_errors in lists:
        path = child_path(at, field)
        if len(items) > maximum:
            yield FieldError(path, f"has {len(items)} items; use at most {maximum}")
        else:
            yield from item_errors(items, path)


def args_errors(args: Sequence[str], at: str) -> FieldErrors:
    """Yield the errors of a command or of its arguments."""
    if len(args) > MAX_ARGS:
        yield FieldError(at, f"has {len(args)} items; use at most {MAX_ARGS}")
        return
    for index, arg in enumerate(args):
        if "\0" in arg:
            yield FieldError(f"{at}[{index}]", NUL_TEXT)


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
        elif selects_devices(env.name):
            text = f"{env.name} selects devices, but the platform selects them; remove the variable, and set gpu"
            yield FieldError(path, text)
        elif env.name in seen:
            yield FieldError(path, f"{env.name} is already set by {at}[{seen[env.name]}]; remove one of them")
        if env.value_from is not None:
            secret, secret_at = env.value_from.secret, f"{at}[{index}].valueFrom.secret"
            if env.value:
                yield FieldError(f"{at}[{index}].value", "is given together with valueFrom; remove one of them")
            yield from secret_name_errors(secret.name, f"{secret_at}.name")
            yield from secret_key_errors(secret.key, f"{secret_at}.key")
        if "\0" in env.value:
            yield FieldError(f"{at}[{index}].value", NUL_TEXT)
        elif len(env.value) > MAX_ENV_VALUE_LENGTH:
            yield FieldError(
                f"{at}[{index}].value", f"has {len(env.value)} characters; use at most {MAX_ENV_VALUE_LENGTH}"
            )
        seen.setdefault(env.name, index)


def _is_env_name(name: str) -> bool:
    """Whether the oldest supported Kubernetes version allows the name. Newer versions allow more characters."""
    return matches(ENV_NAME_PATTERN, name) and name != "." and not name.startswith("..")


def container_errors(template: Template, at: str) -> FieldErrors:
    """Yield the errors of the fields that decide how the container starts and stops."""
    path = template.working_dir
    if path and (not path.startswith("/") or not path.isprintable() or len(path) > MAX_PATH_LENGTH):
        text = f"{path!r} is not an absolute path of at most {MAX_PATH_LENGTH} printable characters; begin with '/'"
        yield FieldError(child_path(at, "workingDir"), text)
    if template.init is not None and not (template.init.command or template.init.args):
        yield FieldError(child_path(at, "init"), "has neither command nor args; give one of them, or omit init")
    if template.shared_memory:
        yield from bytes_errors(template.shared_memory, child_path(at, "sharedMemory"))
    if template.image_pull_policy not in ("", *IMAGE_PULL_POLICIES):
        text = f"{template.image_pull_policy!r} is not one of {', '.join(IMAGE_PULL_POLICIES)}"
        yield FieldError(child_path(at, "imagePullPolicy"), text)


def pull_secret_errors(names: Iterable[str], at: str) -> FieldErrors:
    for index, name in enumerate(names):
        yield from secret_name_errors(name, f"{at}[{index}]")


def secret_mount_errors(mounts: Iterable[SecretMount], at: str) -> FieldErrors:
    for index, mount in enumerate(mounts):
        yield from secret_name_errors(mount.name, f"{at}[{index}].name")


def pod_policy_errors(template: Template, policy: PodPolicy, at: str) -> FieldErrors:
    """Yield the errors of the fields that the settings of the platform restrict."""
    user, group, fs_group = template.run_as_user, template.run_as_group, template.fs_group
    for field, value in (("runAsUser", user), ("runAsGroup", group), ("fsGroup", fs_group)):
        if value is not None:
            yield from count_errors(value, child_path(at, field), 0, MAX_USER_ID)
    if policy.require_non_root and user == 0:
        yield FieldError(child_path(at, "runAsUser"), "0 is root, which this platform does not allow; use another user")
    seconds = template.termination_grace_period_seconds
    if seconds is not None:
        path = child_path(at, "terminationGracePeriodSeconds")
        yield from count_errors(seconds, path, 1, policy.max_termination_grace_period_seconds)


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
