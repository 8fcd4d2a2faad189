"""A cache of functions that is behind, and does not know it."""

import asyncio

from gpu_runtime.activator.function_lister import Functions
from gpu_runtime.kube.client import connect
from gpu_runtime.kube.config import load_config
from tests.integration.activator.plane import IDENTITY, STOCK, Plane


async def test_a_function_that_was_not_heard_of_is_asked_for_before_it_counts_as_gone(plane: Plane) -> None:
    config = load_config(plane.control.kubeconfig_for("activator", IDENTITY))
    async with connect(config, field_manager="activator") as client:
        functions = Functions(client, STOCK)
        watching = asyncio.create_task(functions.units.run())
        await functions.units.synced()
        watching.cancel()
        await asyncio.wait({watching})
        await plane.function("unheard")
        assert functions.serving("unheard") is None
        assert functions.certain()
        assert not await functions.is_gone("unheard")
        assert functions.serving("unheard") is not None
        assert await functions.is_gone("never-made")
        assert await functions.is_gone("Not.A.Name")
