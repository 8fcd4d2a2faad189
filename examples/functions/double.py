"""A function that doubles a number, with the Python framework. docs/framework.md describes the contract.

Run it without a cluster: GPU_RUNTIME_SOCKET=/tmp/framework.sock python double.py
"""

from gpu_runtime.framework import Reject, handler, serve


@handler
def run(request):
    if not isinstance(request.payload, dict) or not isinstance(request.payload.get("n"), (int, float)):
        raise Reject('send {"n": <number>}')
    return {"n": request.payload["n"] * 2}


serve()
