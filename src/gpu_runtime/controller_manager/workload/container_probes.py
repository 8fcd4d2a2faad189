"""Builds the probes of the user's container."""

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.probes import Probe, Probes
from gpu_runtime.kube.meta import Manifest


def container_probes(spec: GPUUnitSpec) -> Manifest:
    """Return the probes of the container. A probe that does not apply is None, so that drift detection removes it."""
    probes = spec.probes or Probes()
    given = {"startupProbe": probes.startup, "readinessProbe": probes.readiness, "livenessProbe": probes.liveness}
    return {name: probe and _probe(probe, spec) for name, probe in given.items()}


def _probe(probe: Probe, spec: GPUUnitSpec) -> Manifest | None:
    check = _check(probe, spec)
    if check is None:
        return None
    return check | {
        "initialDelaySeconds": probe.initial_delay_seconds or None,  # the API server omits 0
        "periodSeconds": probe.period_seconds,
        "timeoutSeconds": probe.timeout_seconds,
        "successThreshold": 1,
        "failureThreshold": probe.failure_threshold,
    }


def _check(probe: Probe, spec: GPUUnitSpec) -> Manifest | None:
    """Return the check. Return None if the probe is disabled, or if it needs a primary TCP port that does not exist."""
    if probe.exec is not None:
        return {"exec": {"command": list(probe.exec.command)}}
    check = probe.http_get or probe.tcp_socket
    port = spec.port_named(check.port) if check and check.port else spec.primary_port()
    if check is None or port is None or port.protocol != "TCP":
        return None
    if probe.http_get is not None:
        get = probe.http_get
        return {"httpGet": {"path": get.path, "port": port.port, "scheme": get.scheme}}
    return {"tcpSocket": {"port": port.port}}
