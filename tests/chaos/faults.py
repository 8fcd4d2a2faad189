"""Faults carried out: begun, held for their time, and healed whatever happens meanwhile."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from signal import Signals

from localcluster.supervisor_client import Processes, ProcessFailed
from tests.chaos.kubelet import Kubelet, Worker
from tests.chaos.links import Link
from tests.chaos.plan import Fault, Kind
from tests.chaos.platform import Platform, Process

KUBERNETES = ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler")


@dataclass
class Faults:
    platform: Platform
    kubelet: Kubelet
    tell: Callable[[str], None]
    kinds: Counter[Kind] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)
    """Processes of the product, by name."""
    told: list[str] = field(default_factory=list)
    """Those of this round, in order, with who was hit."""

    async def happen(self, plan: tuple[Fault, ...]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for fault in plan:
                tasks.create_task(self._happen(fault))

    async def _happen(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        async with self._begun(fault) as whom:
            self.told.append(f"{fault} ({whom or 'nobody was there'})")
            self.tell(self.told[-1])
            if whom:
                self.kinds[fault.kind] += 1
                await asyncio.sleep(fault.seconds)

    @asynccontextmanager
    async def _begun(self, fault: Fault) -> AsyncIterator[str]:
        match fault.kind:
            case Kind.KILL:
                processes, name = await self._process(fault.target, fault.pick)
                yield name if await self._signal(processes, name, Signals.SIGKILL) else ""
            case Kind.PAUSE:
                processes, name = await self._process(fault.target, fault.pick)
                there = await self._signal(processes, name, Signals.SIGSTOP)
                try:
                    yield name if there else ""
                finally:
                    await self._signal(processes, name, Signals.SIGCONT)
            case Kind.SILENCE | Kind.CUT:
                link, name = await self._link(fault.target, fault.pick)
                broken = nullcontext() if link is None else link.cut() if fault.kind is Kind.CUT else link.silent()
                with broken:
                    yield name
            case Kind.FULL:
                disk = self.platform.disks[fault.target]
                try:
                    await asyncio.to_thread(disk.fill)
                    yield fault.target
                finally:
                    await asyncio.to_thread(disk.free)

    async def _signal(self, processes: Processes, name: str, number: Signals) -> bool:
        try:
            await asyncio.to_thread(processes.signal, name, number)
        except ProcessFailed:
            return False
        if number is Signals.SIGKILL and processes is self.platform.processes:
            self.killed[name] += 1
        return True

    async def _process(self, target: str, pick: int) -> tuple[Processes, str]:
        platform = self.platform
        if target in KUBERNETES:
            return platform.plane.processes, target
        if target == "nats":
            return platform.nats.processes, target
        if target in ("sidecar", "framework"):
            worker = self._worker(pick)
            return platform.processes, str(getattr(worker, target)) if worker else ""
        return platform.processes, (await self._product(target, pick)).name

    async def _link(self, target: str, pick: int) -> tuple[Link | None, str]:
        whose, _, end = target.partition(" to ")
        if whose == "sidecar":
            worker = self._worker(pick)
            return (worker.link, worker.sidecar) if worker else (None, "")
        name = f"{(await self._product(whose, pick)).name} to {end}"
        return self.platform.links[name], name

    async def _product(self, target: str, pick: int) -> Process:
        """One of that kind; where one of them leads, it matters which."""
        role, _, kind = target.rpartition(" ")
        copies = self.platform.called(kind)
        if role:
            leads = await asyncio.gather(*(self.platform.leads(each) for each in copies))
            wanted = [each for each, leading in zip(copies, leads, strict=True) if leading == (role == "leading")]
            copies = wanted or copies
        return copies[pick % len(copies)]

    def _worker(self, pick: int) -> Worker | None:
        living = self.kubelet.living
        return living[pick % len(living)] if living else None
