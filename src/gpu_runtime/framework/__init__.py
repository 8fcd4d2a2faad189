"""What a user's container imports: a handler, served to the worker's sidecar over a unix socket.

The standard library is all that this package needs, so it also runs where it was merely copied. It knows no queue, no
Kubernetes and no credentials. `docs/framework.md` is the contract, for other languages too.
"""

from gpu_runtime.framework.entrypoint import serve
from gpu_runtime.framework.errors import CannotServe, Reject, Retry
from gpu_runtime.framework.registry import handler
from gpu_runtime.framework.request import Headers, Request
from gpu_runtime.framework.responses import Response

__all__ = ["CannotServe", "Headers", "Reject", "Request", "Response", "Retry", "handler", "serve"]
