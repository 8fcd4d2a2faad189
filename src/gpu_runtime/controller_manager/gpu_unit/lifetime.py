"""Stops and deletes units whose lifetime is over, and announces it with an Event beforehand.

The clock of this process may be wrong. So this process compares it with the clock of the API server before it ends a
unit, and waits if the two differ. The end is a conditional write: if another client has changed the unit in the
meantime, for example extended it, the write fails, and the controller decides again.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation, UnitRole, role_of
from gpu_runtime.contract.operation_rules import is_finished
from gpu_runtime.contract.unit_lifetime import EndAction, UnitEnd, format_time, next_end, recorded_run
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.gpu_unit.unit_operation import find_operation
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.workload.status_writer import StatusWriter
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeNotFound
from gpu_runtime.kube.live_objects import find_live, patch_this

logger = logging.getLogger(__name__)

MAX_CLOCK_DIFFERENCE = timedelta(seconds=5)
RECHECK_SECONDS = 1.0
"""Delay until the next attempt, if the handoff of the unit is not finished."""
CLOCK_RECHECK_SECONDS = 30.0
"""Delay until the next attempt, if the clocks differ. Each attempt logs a warning."""

EVENTS = {
    EndAction.STOP: ("StopsSoon", "the platform will stop the unit at {at}, because its lifetime will be over"),
    EndAction.DELETE: ("DeletesSoon", "the platform will delete the unit at {at}, because its lifetime will be over"),
}


@dataclass(frozen=True)
class UnitLifetimes:
    client: KubeClient
    informers: ControllerInformers
    status_writer: StatusWriter
    settings: ControllerManagerSettings

    async def end_if_due(self, unit: GPUUnit) -> float | None:
        """End the unit if its time has come. Return the seconds until the next check, or None if there is none."""
        end = self._end_of(unit)
        if end is None:
            return None
        remaining = (end.at - self.status_writer.clock()).total_seconds()
        if remaining <= 0:
            return await self._end(unit)
        until_event = remaining - self.settings.lifetimes.announcement_seconds
        if until_event > 0:
            return until_event
        reason, text = EVENTS[end.action]
        self.status_writer.recorder.normal(GPU_UNITS, unit, reason, text.format(at=format_time(end.at)))
        return remaining

    async def _end(self, unit: GPUUnit) -> float | None:
        now = await self.agreed_time(unit)
        if now is None:
            return CLOCK_RECHECK_SECONDS
        live = await find_live(self.client, GPU_UNITS, unit.metadata.key)
        end = self._end_of(live) if live is not None and live.metadata.uid == unit.metadata.uid else None
        if live is None or end is None or live.metadata.deletion_timestamp is not None:
            return None  # the informer will deliver the change
        if end.at > now:
            return max((end.at - now).total_seconds(), RECHECK_SECONDS)
        if await self._handoff_is_unfinished(live):
            return RECHECK_SECONDS
        await self._write_end(live, end)
        return None

    async def agreed_time(self, unit: GPUUnit) -> datetime | None:
        """Return the earlier of the two clocks: of this process and of the API server. Return None if they differ."""
        server, local = await self.client.server_time(), self.status_writer.clock()
        if abs(server - local) <= MAX_CLOCK_DIFFERENCE:
            return min(server, local)
        logger.warning(
            "clock of the controller manager differs from the clock of the API server; the controller manager will stop"
            " and delete no unit at the end of its lifetime until the clocks agree",
            extra={
                "namespace": unit.metadata.namespace,
                "object_name": unit.metadata.name,
                "clock_difference_seconds": (local - server).total_seconds(),
            },
        )
        return None

    async def _handoff_is_unfinished(self, unit: GPUUnit) -> bool:
        """Return whether the operation that created the unit is not finished: it could create the unit again."""
        annotations = unit.metadata.annotations
        if not annotations.get(Annotation.OPERATION_ID):
            return False
        operation = await find_operation(self.client, self.settings.namespaces.system, unit)
        if operation is None or operation.metadata.uid != annotations.get(Annotation.OPERATION_UID):
            return False
        return not is_finished(operation)

    async def _write_end(self, unit: GPUUnit, end: UnitEnd) -> None:
        metadata, version = unit.metadata, unit.metadata.resource_version
        fields = {"namespace": metadata.namespace, "object_name": metadata.name}
        if end.action is EndAction.DELETE:
            with suppress(KubeNotFound):
                await self.client.delete(GPU_UNITS, metadata.key, uid=metadata.uid, resource_version=version)
            logger.info("unit deleted because its lifetime is over", extra=fields)
            return
        annotations = {Annotation.ENDED_RUN: unit.status.start_time}
        patch = {"spec": {"running": False}, "metadata": {"annotations": annotations}}
        await patch_this(self.client, self.informers.units, unit, patch)
        logger.info("unit stopped because its lifetime is over", extra=fields)

    def _end_of(self, unit: GPUUnit) -> UnitEnd | None:
        """Return the next end. Functions, workers and stock have none: their spec with a lifetime is invalid."""
        role = role_of(unit.metadata.namespace, self.settings.namespaces.stock)
        if unit.spec.serves_function or role is UnitRole.STOCK:
            return None
        return next_end(unit, recorded_run(unit))
