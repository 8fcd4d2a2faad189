"""The Python framework for user containers: it serves one handler function to the worker sidecar over a unix socket.

The package imports only the standard library, so it also works when a user copies it into an image. It contains no NATS
client, no Kubernetes client and no credentials. `docs/framework.md` is the contract, also for other languages.
"""

from gpu_runtime.framework.entrypoint import exit_on_sigterm_while_loading, serve
from gpu_runtime.framework.errors import CannotServe, Reject, Retry
from gpu_runtime.framework.registry import handler
from gpu_runtime.framework.request import Headers, Request
from gpu_runtime.framework.responses import Response

__all__ = ["CannotServe", "Headers", "Reject", "Request", "Response", "Retry", "handler", "serve"]

exit_on_sigterm_while_loading()
