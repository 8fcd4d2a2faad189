"""Injects the faults of a schedule: starts each fault, keeps it active for its duration, and always ends it."""

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
    """How often each process of the product was killed, by process name."""
    injected_faults: list[str] = field(default_factory=list)
    """The faults of this round in the order of their start, with the affected process or link."""

    async def inject_all(self, schedule: tuple[Fault, ...]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for fault in schedule:
                tasks.create_task(self._inject(fault))

    async def _inject(self, fault: Fault) -> None:
        await asyncio.sleep(fault.start_seconds)
        async with self._active_fault(fault) as target_name:
            self.injected_faults.append(f"{fault} ({target_name or 'no such target'})")
            self.log(self.injected_faults[-1])
            if target_name:
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
                is_paused = await self._signal(processes, name, Signals.SIGSTOP)
                try:
                    yield name if is_paused else ""
                finally:
                    await self._signal(processes, name, Signals.SIGCONT)
            case FaultKind.STALL | FaultKind.DISCONNECT:
                proxy, name = await self._target_proxy(fault.target, fault.target_index)
                proxy_fault = (
                    nullcontext()
                    if proxy is None
                    else proxy.disconnected()
                    if fault.kind is FaultKind.DISCONNECT
                    else proxy.stalled()
                )
                with proxy_fault:
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

    async def _target_process(self, target: str, index: int) -> tuple[SupervisorClient, str]:
        platform = self.platform
        if target in KUBERNETES_PROCESSES:
            return platform.control_plane.processes, target
        if target == "nats":
            return platform.nats.processes, target
        if target in ("sidecar", "framework"):
            worker = self._target_worker(index)
            return platform.processes, str(getattr(worker, target)) if worker else ""
        return platform.processes, (await self._target_replica(target, index)).name

    async def _target_proxy(self, target: str, index: int) -> tuple[TcpProxy | None, str]:
        source, _, destination = target.partition(" to ")
        if source == "sidecar":
            worker = self._target_worker(index)
            return (worker.proxy, worker.sidecar) if worker else (None, "")
        name = f"{(await self._target_replica(source, index)).name} to {destination}"
        return self.platform.proxies[name], name

    async def _target_replica(self, target: str, index: int) -> ProductProcess:
        """Return a replica of the target's kind. A target can ask for the leader or for a replica on standby."""
        role, _, kind = target.rpartition(" ")
        replicas = self.platform.replicas_of(kind)
        if role:
            leaders = await asyncio.gather(*(self.platform.is_leader(each) for each in replicas))
            matching = [each for each, leads in zip(replicas, leaders, strict=True) if leads == (role == "leading")]
            replicas = matching or replicas
        return replicas[index % len(replicas)]

    def _target_worker(self, index: int) -> WorkerProcesses | None:
        workers = self.kubelet.running_workers
        return workers[index % len(workers)] if workers else None
