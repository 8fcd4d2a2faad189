"""A function with the helper. Run it with GPU_RUNTIME_SOCKET=/tmp/framework.sock, and see docs/framework.md."""

from gpu_runtime.framework import Reject, handler, serve


@handler
def run(request):
    if not isinstance(request.payload, dict) or not isinstance(request.payload.get("n"), (int, float)):
        raise Reject('send {"n": <number>}')
    return {"n": request.payload["n"] * 2}


serve()
