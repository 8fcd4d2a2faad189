"""Validation of the probes of a unit."""

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.probes import (
    HTTP_SCHEMES,
    MAX_PROBE_FAILURES,
    MAX_PROBE_SECONDS,
    Probe,
    Probes,
    ReadinessProbe,
)
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors, child_path
from gpu_runtime.contract.validation.template_and_access import args_errors
from gpu_runtime.contract.validation.values import count_errors, http_path_errors


def probe_errors(probes: Probes, spec: GPUUnitSpec, at: str) -> FieldErrors:
    for field, probe in (("startup", probes.startup), ("readiness", probes.readiness), ("liveness", probes.liveness)):
        if probe is not None:
            yield from _single_probe_errors(probe, spec, child_path(at, field))


def _single_probe_errors(probe: Probe, spec: GPUUnitSpec, at: str) -> FieldErrors:
    checks = [name for name in ("http_get", "tcp_socket", "exec") if getattr(probe, name) is not None]
    is_disabled = isinstance(probe, ReadinessProbe) and probe.disabled
    if is_disabled and checks:
        yield FieldError(child_path(at, "disabled"), "is given together with a check; remove one of them")
    elif not is_disabled and len(checks) != 1:
        yield FieldError(at, f"has {len(checks)} checks; give exactly one of httpGet, tcpSocket and exec")
    yield from count_errors(probe.initial_delay_seconds, child_path(at, "initialDelaySeconds"), 0, MAX_PROBE_SECONDS)
    yield from count_errors(probe.period_seconds, child_path(at, "periodSeconds"), 1, MAX_PROBE_SECONDS)
    yield from count_errors(probe.timeout_seconds, child_path(at, "timeoutSeconds"), 1, MAX_PROBE_SECONDS)
    yield from count_errors(probe.failure_threshold, child_path(at, "failureThreshold"), 1, MAX_PROBE_FAILURES)
    yield from _check_errors(probe, spec, at)


def _check_errors(probe: Probe, spec: GPUUnitSpec, at: str) -> FieldErrors:
    if probe.http_get is not None:
        check, path = probe.http_get, child_path(at, "httpGet")
        yield from http_path_errors(check.path, child_path(path, "path"))
        if check.scheme not in HTTP_SCHEMES:
            yield FieldError(child_path(path, "scheme"), f"{check.scheme!r} is not one of {', '.join(HTTP_SCHEMES)}")
        primary = spec.primary_port()
        if not check.port and (primary is None or primary.protocol != "TCP"):
            yield FieldError(child_path(path, "port"), "is required, because the unit has no TCP port as primary port")
        yield from _port_errors(check.port, spec, child_path(path, "port"))
    if probe.tcp_socket is not None:
        yield from _port_errors(probe.tcp_socket.port, spec, child_path(at, "tcpSocket.port"))
    if probe.exec is not None:
        path = child_path(at, "exec.command")
        if not probe.exec.command:
            yield FieldError(path, "is empty; give the command and its arguments")
        yield from args_errors(probe.exec.command, path)


def _port_errors(name: str, spec: GPUUnitSpec, at: str) -> FieldErrors:
    port = spec.port_named(name)
    if name and port is None:
        names = ", ".join(each.name for each in spec.template.ports) or "none"
        yield FieldError(at, f"{name!r} is not the name of a port in template.ports; the names there: {names}")
    elif port is not None and port.protocol != "TCP":
        yield FieldError(at, f"{name!r} is a {port.protocol} port; choose a TCP port, or use exec")
