"""A settings key with a number says what is counted and in which unit."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import msgspec

from checks.finding import Finding
from gpu_runtime.activator.settings import ActivatorSettings
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.result_store.settings import ResultStoreSettings
from gpu_runtime.runtime_api.settings import RuntimeAPISettings
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings

PROCESSES: Mapping[str, type[BaseSettings]] = MappingProxyType(
    {
        "runtime-api": RuntimeAPISettings,
        "controller-manager": ControllerManagerSettings,
        "activator": ActivatorSettings,
        "worker-sidecar": WorkerSidecarSettings,
        "result-store": ResultStoreSettings,
    }
)
"""The settings of every process, by the name of the process."""

UNIT = re.compile(r"(Seconds|Bytes|PerSecond|Port|Size)$|^(max|min)[A-Z]\w*$")
DIMENSIONLESS = frozenset({"burst", "concurrency", "port", "replicas"})
"""Keys whose name alone is the quantity, as in Kubernetes and NATS."""


def check_settings_keys() -> Iterator[Finding]:
    for process in PROCESSES.values():
        path = process.__module__.replace(".", "/")
        for key in keys_without_unit(process):
            yield Finding(f"src/{path}.py", 1, f"settings key {key} is a number and names no unit")


def keys_without_unit(settings: type[msgspec.Struct]) -> list[str]:
    return [key for key in sorted(set(_numbers(settings))) if not any(map(_names_unit, key.split(".")))]


def _names_unit(part: str) -> bool:
    """Whether a part of a key names a unit: the key itself, or its section, as in maxConcurrentReconciles.gpuUnits."""
    return part in DIMENSIONLESS or UNIT.search(part) is not None


def _numbers(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        kind = msgspec.inspect.type_info(field.type)
        key = f"{prefix}{field.encode_name}"
        if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
            yield key
        elif isinstance(kind, msgspec.inspect.StructType):
            yield from _numbers(kind.cls, f"{key}.")
