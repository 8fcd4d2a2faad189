"""The registry of a process: one that is handed around, so that tests and processes in one interpreter do not mix."""

from importlib.metadata import version

from prometheus_client import CollectorRegistry, GCCollector, Info, PlatformCollector, ProcessCollector


def new_registry(process: str) -> CollectorRegistry:
    """A registry that already has memory, CPU, garbage collection, and which build of which process this is."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    build = Info("gpu_runtime_build", "The process and its version", registry=registry)
    build.info({"process": process, "version": version("gpu-runtime")})
    return registry
