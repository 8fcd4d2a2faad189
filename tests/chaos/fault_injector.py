"""Faults carried out: begun, held for their time, and healed whatever happens meanwhile."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from signal import Signals

from localcluster.supervisor_client import ProcessFailed, SupervisorClient
from tests.chaos.fake_kubelet import FakeKubelet, WorkerProcesses
from tests.chaos.fault_schedule import Fault, FaultKind
from tests.chaos.system_under_test import ProductProcess, SystemUnderTest
from tests.chaos.tcp_proxy import TcpProxy

KUBERNETES_PROCESSES = ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler")


@dataclass
class FaultInjector:
    platform: SystemUnderTest
    kubelet: FakeKubelet
    log: Callable[[str], None]
    injected_kinds: Counter[FaultKind] = field(default_factory=Counter)
    killed_processes: Counter[str] = field(default_factory=Counter)
    """Processes of the product, by name."""
    injected_faults: list[str] = field(default_factory=list)
    """Those of this round, in order, with who was hit."""

    async def inject_all(self, plan: tuple[Fault, ...]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for fault in plan:
                tasks.create_task(self._inject(fault))

    async def _inject(self, fault: Fault) -> None:
        await asyncio.sleep(fault.start_seconds)
        async with self._active_fault(fault) as whom:
            self.injected_faults.append(f"{fault} ({whom or 'nobody was there'})")
            self.log(self.injected_faults[-1])
            if whom:
                self.injected_kinds[fault.kind] += 1
                await asyncio.sleep(fault.duration_seconds)

    @asynccontextmanager
    async def _active_fault(self, fault: Fault) -> AsyncIterator[str]:
        match fault.kind:
            case FaultKind.KILL:
                processes, name = await self._target_process(fault.target, fault.target_index)
                yield name if await self._signal(processes, name, Signals.SIGKILL) else ""
            case FaultKind.PAUSE:
                processes, name = await self._target_process(fault.target, fault.target_index)
                there = await self._signal(processes, name, Signals.SIGSTOP)
                try:
                    yield name if there else ""
                finally:
                    await self._signal(processes, name, Signals.SIGCONT)
            case FaultKind.STALL | FaultKind.DISCONNECT:
                link, name = await self._target_proxy(fault.target, fault.target_index)
                broken = (
                    nullcontext()
                    if link is None
                    else link.disconnected()
                    if fault.kind is FaultKind.DISCONNECT
                    else link.stalled()
                )
                with broken:
                    yield name
            case FaultKind.FULL_DISK:
                disk = self.platform.disks[fault.target]
                try:
                    await asyncio.to_thread(disk.fill)
                    yield fault.target
                finally:
                    await asyncio.to_thread(disk.free)

    async def _signal(self, processes: SupervisorClient, name: str, number: Signals) -> bool:
        try:
            await asyncio.to_thread(processes.signal, name, number)
        except ProcessFailed:
            return False
        if number is Signals.SIGKILL and processes is self.platform.processes:
            self.killed_processes[name] += 1
        return True

    async def _target_process(self, target: str, pick: int) -> tuple[SupervisorClient, str]:
        platform = self.platform
        if target in KUBERNETES_PROCESSES:
            return platform.control_plane.processes, target
        if target == "nats":
            return platform.nats.processes, target
        if target in ("sidecar", "framework"):
            worker = self._target_worker(pick)
            return platform.processes, str(getattr(worker, target)) if worker else ""
        return platform.processes, (await self._target_replica(target, pick)).name

    async def _target_proxy(self, target: str, pick: int) -> tuple[TcpProxy | None, str]:
        whose, _, end = target.partition(" to ")
        if whose == "sidecar":
            worker = self._target_worker(pick)
            return (worker.proxy, worker.sidecar) if worker else (None, "")
        name = f"{(await self._target_replica(whose, pick)).name} to {end}"
        return self.platform.proxies[name], name

    async def _target_replica(self, target: str, pick: int) -> ProductProcess:
        """One of that kind; where one of them leads, it matters which."""
        role, _, kind = target.rpartition(" ")
        copies = self.platform.replicas_of(kind)
        if role:
            leads = await asyncio.gather(*(self.platform.is_leader(each) for each in copies))
            wanted = [each for each, leading in zip(copies, leads, strict=True) if leading == (role == "leading")]
            copies = wanted or copies
        return copies[pick % len(copies)]

    def _target_worker(self, pick: int) -> WorkerProcesses | None:
        living = self.kubelet.running_workers
        return living[pick % len(living)] if living else None
