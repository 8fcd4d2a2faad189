"""Creates the metrics registry of a process.

Every component gets the registry as an argument. There is no global registry, so tests and processes in one interpreter
do not share metrics.
"""

from importlib.metadata import version

from prometheus_client import CollectorRegistry, GCCollector, Info, PlatformCollector, ProcessCollector


def new_registry(process: str) -> CollectorRegistry:
    """Return a registry with the metrics of every process: memory, CPU, garbage collection, name and version."""

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    build = Info(
        "gpu_runtime_build", "Name of the process and version of gpu-runtime. The value is always 1.", registry=registry
    )
    build.info({"process": process, "version": version("gpu-runtime")})
    return registry
