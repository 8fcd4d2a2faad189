"""The function lister with a stale cache that has no error."""

import asyncio

from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from tests.integration.activator.activator_harness import ACTIVATOR_USER, STOCK_NAMESPACE, ActivatorHarness


async def test_function_missing_in_a_stale_cache_is_checked_live_before_it_is_deleted(
    harness: ActivatorHarness,
) -> None:
    config = load_cluster_config(harness.control_plane.kubeconfig_for("activator", ACTIVATOR_USER))
    async with open_kube_client(config, field_manager="activator") as client:
        functions = FunctionLister(client, STOCK_NAMESPACE)
        watching = [asyncio.create_task(each.run()) for each in (functions.units, functions.queues)]
        await functions.wait_for_sync()
        for each in watching:
            each.cancel()
        await asyncio.wait(watching)
        await harness.create_function("uncached")
        function_id = harness.function_id("uncached")
        assert functions.by_id(function_id) is None
        assert functions.cache_is_fresh()
        assert not await functions.confirm_not_found(function_id)
        assert functions.by_id(function_id) is not None
        assert await functions.confirm_not_found("not-created")
        assert await functions.confirm_not_found("Not.A.Name")
