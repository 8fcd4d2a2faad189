"""The settings of a local platform, where a process runs on the developer's machine or on one node."""

from gpu_runtime.activator.settings import API, ActivatorSettings
from gpu_runtime.controller_manager.settings import ControllerManagerSettings, Images
from gpu_runtime.process.shared_settings import Endpoints, Log, Nats
from gpu_runtime.result_store.settings import Database, ResultStoreSettings
from gpu_runtime.runtime_api.settings import Authentication, Limits, Listener, RuntimeAPISettings
from gpu_runtime.worker_sidecar.settings import Framework, WorkerSidecarSettings

CONTROLLER_MANAGER = ControllerManagerSettings(
    log=Log(format="text"),
    endpoints=Endpoints(bind="127.0.0.1:8081"),
    images=Images(stock="gpu-runtime:local", placeholder="gpu-runtime:local"),
)

RUNTIME_API = RuntimeAPISettings(
    log=Log(format="text"),
    endpoints=Endpoints(bind="127.0.0.1:8082"),
    # Beside the platform's own, which is at 8080.
    api=Listener(bind="127.0.0.1:8090"),
    # Where `make up` puts it.
    nats=Nats(urls=("nats://127.0.0.1:4222",)),
    # Said in so many words: nobody but the developer reaches this address.
    authentication=Authentication(mode="off"),
    limits=Limits(requests_per_second=0),
)

RESULT_STORE = ResultStoreSettings(
    log=Log(format="text"),
    endpoints=Endpoints(bind="127.0.0.1:8083"),
    nats=Nats(urls=("nats://127.0.0.1:4222",)),
    database=Database(path=".local/results.db"),
)

WORKER_SIDECAR = WorkerSidecarSettings(
    log=Log(format="text"),
    endpoints=Endpoints(bind="127.0.0.1:8086"),
    nats=Nats(urls=("nats://127.0.0.1:4222",)),
    request_id="double",
    worker="double",
    namespace="runtime-instance",
    framework=Framework(socket_path="/tmp/framework.sock"),  # noqa: S108 - where the framework's own guide puts it
)

ACTIVATOR = ActivatorSettings(
    log=Log(format="text"),
    endpoints=Endpoints(bind="127.0.0.1:8084"),
    # Where `make up` has the platform's own.
    nats=Nats(urls=("nats://127.0.0.1:4222",)),
    api=API(url="http://127.0.0.1:8080"),
)
