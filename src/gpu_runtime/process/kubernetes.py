"""Connects a process to Kubernetes, and makes it a candidate for the leadership of its replicas."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.election import LeaderElectionConfig, LeaderElector
from gpu_runtime.kube.errors import KubeConfigError
from gpu_runtime.kube.event_recorder import EventRecorder
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy
from gpu_runtime.process.settings import InvalidSettings
from gpu_runtime.process.shared_settings import KubernetesSettings, LeaderElectionSettings


@asynccontextmanager
async def connect_kubernetes(
    settings: KubernetesSettings, process: str, metrics: KubeMetrics
) -> AsyncIterator[KubeClient]:
    """Yield a client. Raises InvalidSettings if the kubeconfig or the service account cannot be used."""
    kubeconfig = Path(settings.kubeconfig) if settings.kubeconfig else None
    try:
        config = load_cluster_config(kubeconfig, settings.context or None)
    except KubeConfigError as error:
        raise InvalidSettings(f"kubernetes: {error}") from error
    async with open_kube_client(config, field_manager=process, metrics=metrics) as connected:
        yield connected.with_options(settings.request_timeout_seconds, RetryPolicy())


@dataclass(frozen=True)
class Candidate:
    """This replica as a candidate for the leadership."""

    elector: LeaderElector | None
    """None if leader election is disabled. This replica is then always the leader."""
    client: KubeClient
    """The client for the writes of the leader. A write fails after this replica has lost the leadership."""
    recorder: EventRecorder

    def is_leader(self) -> bool:
        return self.elector is None or self.elector.leadership.is_leader()


def new_candidate(
    client: KubeClient, process: str, namespace: str, settings: LeaderElectionSettings, metrics: KubeMetrics
) -> Candidate:
    """Create a candidate for the Lease with the name of the process."""
    identity = os.environ.get("POD_NAME") or socket.gethostname()
    elector = None
    if settings.enabled:
        timing = LeaderElectionConfig(
            settings.lease_duration_seconds, settings.renew_deadline_seconds, settings.retry_period_seconds
        )
        elector = LeaderElector(client, ObjectKey(namespace, process), identity, timing, metrics)
        client = client.fenced(elector.leadership)
    return Candidate(elector, client, EventRecorder(client, process, identity, metrics=metrics))
