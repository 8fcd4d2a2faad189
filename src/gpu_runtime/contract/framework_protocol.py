"""Names in the protocol between the worker sidecar and the user's framework: environment variables and HTTP headers.

`docs/framework.md` describes their meaning. The Python package for frameworks may import only the standard library, so
it has its own copy of these names. A test compares the copy with this module.
"""

SOCKET_VARIABLE = "GPU_RUNTIME_SOCKET"
INVOKE_PATH_VARIABLE = "GPU_RUNTIME_INVOKE_PATH"
HEALTH_PATH_VARIABLE = "GPU_RUNTIME_HEALTH_PATH"
CONCURRENCY_VARIABLE = "GPU_RUNTIME_CONCURRENCY"
MAX_BODY_BYTES_VARIABLE = "GPU_RUNTIME_MAX_BODY_BYTES"

INVOCATION_ID_HEADER = "Gpu-Runtime-Invocation-Id"
DEADLINE_HEADER = "Gpu-Runtime-Deadline"
ATTEMPT_HEADER = "Gpu-Runtime-Attempt"
ATTRIBUTES_HEADER = "Gpu-Runtime-Attributes"
CALLER_HEADER_PREFIX = "Gpu-Runtime-Header-"
