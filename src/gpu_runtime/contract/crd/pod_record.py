"""How the platform built the pods of a unit or pool. The status of the object records it."""

from typing import Annotated

from gpu_runtime.contract.crd.markers import openapi
from gpu_runtime.kube.meta import KubeStruct


class PodRecord(KubeStruct, frozen=True, kw_only=True):
    """The pod profile with which the platform built the pods. Running pods keep it when a new version of the platform
    starts. The platform uses the latest profile when a change of the spec replaces the pods, when the object has been
    stopped and is started again, or when `gpu-runtime units roll` requests it."""

    profile: Annotated[int, openapi(format="int32", minimum=1)]
    """The version of the pod profile."""

    platform_image: str = ""
    """The image of the container of the platform in the pod: of the worker sidecar, of the stock process, or of the
    placeholder of a pool. Empty if the pod has no such container."""

    generation: Annotated[int, openapi(format="int64")] = 0
    """The generation of the spec from which the pods were built."""

    roll_request: Annotated[str, openapi(maxLength=64)] = ""
    """The last request of `gpu-runtime units roll` that the platform has fulfilled."""
