"""`gpu-runtime functions restore`: sets the functionID that a function had before a restore of the cluster.

After a restore from a backup, the unit of a function has another UID, so the controller manager gives the function
another functionID. This command sets the old functionID. The function then gets the invocations that wait in its old
queue.
"""

import argparse
import asyncio
import sys

from gpu_runtime.contract.crd.function_queue import FUNCTION_QUEUES, queue_manifest
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.well_known import FUNCTION_ID_PATTERN
from gpu_runtime.contract.errors import Rejected, RuntimeFault
from gpu_runtime.contract.validation.values import matches
from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.errors import KubeConfigError, KubeError
from gpu_runtime.kube.live_objects import find_live
from gpu_runtime.kube.meta import ObjectKey


def run(options: argparse.Namespace) -> int:
    try:
        asyncio.run(_connect_and_restore(options))
    except (RuntimeFault, KubeError, KubeConfigError) as error:
        print(f"gpu-runtime: {error}", file=sys.stderr)
        return 1
    print(f"function {options.namespace}/{options.name} has the functionID {options.function_id}")
    return 0


async def _connect_and_restore(options: argparse.Namespace) -> None:
    config = load_cluster_config(options.kubeconfig)
    async with open_kube_client(config, field_manager="gpu-runtime") as client:
        key = ObjectKey(options.namespace, options.name)
        await bind_function_id(client, key, options.function_id, options.system_namespace)


async def bind_function_id(client: KubeClient, key: ObjectKey, function_id: str, system_namespace: str) -> None:
    """Set the functionID of the function. Raise Rejected if another function has the functionID or the requestID."""
    if not matches(FUNCTION_ID_PATTERN, function_id):
        raise Rejected(f"{function_id!r} is not a functionID; use lower-case letters, digits, '-' and '_'")
    function = await find_live(client, GPU_UNITS, key)
    if function is None or not function.spec.is_function:
        raise Rejected(f"unit {key} is not a function; restore the unit first")
    manifest = queue_manifest(function, system_namespace, function_id)
    same_id = ListOptions(system_namespace, field_selector=f"spec.functionID={function_id}")
    for queue in (await client.list(FUNCTION_QUEUES, same_id)).items:
        if queue.metadata.name != manifest["metadata"]["name"]:
            raise Rejected(f"function {queue.spec.function.key} has the functionID {function_id!r}; choose another ID")
    existing = await find_live(client, FUNCTION_QUEUES, ObjectKey(system_namespace, manifest["metadata"]["name"]))
    if existing is None:
        await client.create(FUNCTION_QUEUES, manifest)
        return
    owner = await find_live(client, GPU_UNITS, existing.spec.function.key)
    if owner is not None and owner.metadata.uid == existing.spec.function.uid != function.metadata.uid:
        raise Rejected(f"function {owner.metadata.key} owns the requestID; delete it first")
    patch = {"spec": {"functionID": function_id, "function": manifest["spec"]["function"]}}
    await client.merge_patch(
        FUNCTION_QUEUES, existing.metadata.key, patch, resource_version=existing.metadata.resource_version
    )
