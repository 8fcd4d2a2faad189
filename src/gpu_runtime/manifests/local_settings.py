"""Settings of processes that run on a developer's machine and connect to the local platform."""

from gpu_runtime.activator.settings import ActivatorSettings, RuntimeAPIClientSettings
from gpu_runtime.controller_manager.settings import ControllerManagerSettings, ImageSettings
from gpu_runtime.process.shared_settings import BindAddressSettings, LogSettings, NatsSettings, TicketSettings
from gpu_runtime.result_store.settings import DatabaseSettings, ResultStoreSettings
from gpu_runtime.runtime_api.settings import (
    APIListenerSettings,
    AuthenticationSettings,
    RequestLimitSettings,
    RuntimeAPISettings,
)
from gpu_runtime.worker_sidecar.settings import FrameworkSettings, WorkerSidecarSettings

# `make up` writes the keys of the local platform to this file.
TICKETS = TicketSettings(key_file=".local/ticket-keys")

CONTROLLER_MANAGER = ControllerManagerSettings(
    log=LogSettings(format="text"),
    health=BindAddressSettings(bind_address="127.0.0.1:8081"),
    images=ImageSettings(stock="gpu-runtime:local", placeholder="gpu-runtime:local"),
)

RUNTIME_API = RuntimeAPISettings(
    log=LogSettings(format="text"),
    health=BindAddressSettings(bind_address="127.0.0.1:8082"),
    # The runtime API of the local platform listens on port 8080.
    api=APIListenerSettings(bind_address="127.0.0.1:8090"),
    # The address of NATS after `make up`.
    nats=NatsSettings(urls=("nats://127.0.0.1:4222",)),
    tickets=TICKETS,
    # Only the developer can reach this address. Disabling authentication must be explicit.
    authentication=AuthenticationSettings(mode="off"),
    limits=RequestLimitSettings(requests_per_second=0),
)

RESULT_STORE = ResultStoreSettings(
    log=LogSettings(format="text"),
    health=BindAddressSettings(bind_address="127.0.0.1:8083"),
    nats=NatsSettings(urls=("nats://127.0.0.1:4222",)),
    tickets=TICKETS,
    database=DatabaseSettings(path=".local/results.db"),
)

WORKER_SIDECAR = WorkerSidecarSettings(
    log=LogSettings(format="text"),
    health=BindAddressSettings(bind_address="127.0.0.1:8086"),
    nats=NatsSettings(urls=("nats://127.0.0.1:4222",)),
    function_id="0b6a41a2-6a2b-4c6a-9d3f-0f9f7c0a5b11",
    request_id="double",
    worker="double",
    namespace="runtime-instance",
    framework=FrameworkSettings(socket_path="/tmp/framework.sock"),  # noqa: S108 - the path in the framework guide
)

ACTIVATOR = ActivatorSettings(
    log=LogSettings(format="text"),
    health=BindAddressSettings(bind_address="127.0.0.1:8084"),
    # The addresses of NATS and of the runtime API after `make up`.
    nats=NatsSettings(urls=("nats://127.0.0.1:4222",)),
    tickets=TICKETS,
    runtime_api=RuntimeAPIClientSettings(url="http://127.0.0.1:8080"),
)
