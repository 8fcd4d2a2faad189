"""docs/reference/ports.md: every port that a process listens on."""

from docgen.markdown import code, page, table
from gpu_runtime.controller_manager.settings import SidecarContainerSettings
from gpu_runtime.process.shared_settings import BindAddressSettings
from gpu_runtime.runtime_api.settings import APIListenerSettings


def ports_page() -> str:
    health, api = BindAddressSettings().port, APIListenerSettings().port
    sidecar = SidecarContainerSettings().port
    served = "`/healthz`, `/readyz`, `/metrics`"
    rows = (
        (
            "runtime-api",
            str(api),
            code("api.bindAddress"),
            "the HTTP API, `/openapi.json`, `/swagger/`, `/healthz`, `/readyz`",
        ),
        ("runtime-api", str(health), code("health.bindAddress"), served),
        ("controller-manager", str(health), code("health.bindAddress"), served),
        ("activator", str(health), code("health.bindAddress"), served),
        ("result-store", str(health), code("health.bindAddress"), served),
        (
            "worker-sidecar",
            str(sidecar),
            code("serverless.sidecar.port"),
            f"{served}, and `/drained`. The kubelet calls `/drained` before it stops the user's container. No HTTP request changes the state of the worker. `serverless.sidecar.port` is a setting of the controller manager.",
        ),
        (
            "NATS",
            "4222",
            "`config/nats`",
            "the NATS protocol for runtime-api, activator, result-store and worker-sidecar",
        ),
    )
    introduction = "This page lists the default port of each listener, and the setting or the folder in which you can change the port. All ports use TCP without TLS."
    return page("Ports", introduction, table(("process", "default port", "setting or folder", "serves"), rows))
