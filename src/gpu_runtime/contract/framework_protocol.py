"""The names that the user's framework and the platform agree on: what the container's environment says, and the HTTP
headers of an invocation. `docs/framework.md` says what they mean.

The Python helper, which may import nothing but the standard library, has its own copy; a test holds the two together.
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
