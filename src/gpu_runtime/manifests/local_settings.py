"""The settings of a local platform, where a process runs on the developer's machine or on one node."""

from gpu_runtime.controller_manager.settings import ControllerManagerSettings, Images
from gpu_runtime.process.sections import Endpoints, Log

CONTROLLER_MANAGER = ControllerManagerSettings(
    log=Log(format="text"),
    endpoints=Endpoints(bind="127.0.0.1:8081"),
    images=Images(stock="gpu-runtime:local", placeholder="gpu-runtime:local"),
)
