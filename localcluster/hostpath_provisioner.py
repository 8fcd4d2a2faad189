"""Volumes for claims of classes with this provisioner: folders on this machine that outlive pods and grow on paper.

A program of its own: `python -m localcluster.hostpath_provisioner --kubeconfig FILE --volumes FOLDER`. Level-triggered: after
any change of a claim or a volume, everything is looked at again.
"""

import argparse
import logging
import queue
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
from lightkube import Client, KubeConfig
from lightkube.models.core_v1 import HostPathVolumeSource, ObjectReference, PersistentVolumeSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus

PROVISIONER_NAME = "localcluster/hostpath"
STORAGE_PROVISIONER_ANNOTATION = "volume.kubernetes.io/storage-provisioner"
"""How Kubernetes asks for a claim's volume: at once or when the first pod mounts it, as its class says."""
PROVISIONED_BY_ANNOTATION = "pv.kubernetes.io/provisioned-by"
RESYNC_SECONDS = 30.0

log = logging.getLogger("provisioner")


class HostPathProvisioner:
    def __init__(self, client: Client, volumes: Path) -> None:
        self.client = client
        self.volumes_dir = volumes

    def reconcile(self) -> None:
        claims = [claim for claim in self.client.list(PersistentVolumeClaim, namespace="*") if _is_own_pvc(claim)]
        volumes = {volume.metadata.name: volume for volume in self._own_volumes() if volume.metadata}
        for claim in claims:
            volume = volumes.get(_volume_name(claim))
            if volume is None:
                self.provision(claim)
            elif _requested_size(claim) != _capacity(volume) or _requested_size(claim) != _reported_capacity(claim):
                self.expand(claim)
        for volume in volumes.values():
            if volume.status and volume.status.phase == "Released":
                self.delete(volume)

    def provision(self, claim: PersistentVolumeClaim) -> None:
        assert claim.metadata  # noqa: S101
        name = _volume_name(claim)
        folder = self.volumes_dir / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # whoever a pod's user is, the volume is the pod's
        reference = ObjectReference(
            apiVersion="v1",
            kind="PersistentVolumeClaim",
            name=claim.metadata.name,
            namespace=claim.metadata.namespace,
            uid=claim.metadata.uid,
        )
        spec = PersistentVolumeSpec(
            accessModes=claim.spec.accessModes if claim.spec else None,
            capacity={"storage": _requested_size(claim)},
            claimRef=reference,
            hostPath=HostPathVolumeSource(path=str(folder), type="Directory"),
            persistentVolumeReclaimPolicy="Delete",
            storageClassName=claim.spec.storageClassName if claim.spec else None,
        )
        metadata = ObjectMeta(name=name, annotations={PROVISIONED_BY_ANNOTATION: PROVISIONER_NAME})
        self.client.create(PersistentVolume(metadata=metadata, spec=spec))
        log.info("provisioned %s for %s/%s", name, claim.metadata.namespace, claim.metadata.name)

    def expand(self, claim: PersistentVolumeClaim) -> None:
        """Grow the volume, then say so on the claim, once it is bound: the order in which a real driver does it."""
        if not (claim.metadata and claim.status and claim.status.phase == "Bound"):
            return
        capacity = {"storage": _requested_size(claim)}
        self.client.patch(PersistentVolume, _volume_name(claim), {"spec": {"capacity": capacity}})
        self.client.patch(
            PersistentVolumeClaimStatus,
            str(claim.metadata.name),
            {"status": {"capacity": capacity}},
            namespace=claim.metadata.namespace,
        )
        log.info("expanded %s/%s to %s", claim.metadata.namespace, claim.metadata.name, _requested_size(claim))

    def delete(self, volume: PersistentVolume) -> None:
        name = str(volume.metadata and volume.metadata.name)
        shutil.rmtree(self.volumes_dir / name, ignore_errors=True)
        self.client.delete(PersistentVolume, name)
        log.info("deleted %s", name)

    def _own_volumes(self) -> Iterator[PersistentVolume]:
        for volume in self.client.list(PersistentVolume):
            if ((volume.metadata and volume.metadata.annotations) or {}).get(
                PROVISIONED_BY_ANNOTATION
            ) == PROVISIONER_NAME:
                yield volume


def _is_own_pvc(claim: PersistentVolumeClaim) -> bool:
    deleted = bool(claim.metadata and claim.metadata.deletionTimestamp)
    asked = ((claim.metadata and claim.metadata.annotations) or {}).get(STORAGE_PROVISIONER_ANNOTATION)
    return asked == PROVISIONER_NAME and not deleted


def _volume_name(claim: PersistentVolumeClaim) -> str:
    return f"pvc-{claim.metadata and claim.metadata.uid}"


def _requested_size(claim: PersistentVolumeClaim) -> str:
    resources = claim.spec and claim.spec.resources
    return str(((resources and resources.requests) or {})["storage"])


def _reported_capacity(claim: PersistentVolumeClaim) -> str | None:
    return ((claim.status and claim.status.capacity) or {}).get("storage")


def _capacity(volume: PersistentVolume) -> str | None:
    return ((volume.spec and volume.spec.capacity) or {}).get("storage")


def _watch(config: KubeConfig, kind: type, changes: "queue.Queue[None]") -> None:
    """Tell of every change, and of every break of the watch, since something may have been missed then."""
    while True:
        try:
            with Client(config=config) as client:
                for _ in client.watch(kind, namespace="*" if kind is PersistentVolumeClaim else None):
                    changes.put(None)
        except httpx2.HTTPError as error:
            log.warning("watch of %s broke: %s", kind.__name__, error)
        changes.put(None)
        threading.Event().wait(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--volumes", required=True, type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    config = KubeConfig.from_file(options.kubeconfig)
    changes: queue.Queue[None] = queue.Queue()
    for kind in (PersistentVolumeClaim, PersistentVolume):
        threading.Thread(target=_watch, args=(config, kind, changes), daemon=True).start()
    with Client(config=config) as client:
        provisioner = HostPathProvisioner(client, options.volumes)
        while True:
            try:
                provisioner.reconcile()
            except httpx2.HTTPError as error:
                log.warning("will try again: %s", error)
                threading.Event().wait(0.5)
                changes.put(None)
            _wait_for_change(changes)


def _wait_for_change(changes: "queue.Queue[None]") -> None:
    """Wait for a change, and take all that have come since as one."""
    try:
        changes.get(timeout=RESYNC_SECONDS)
        while True:
            changes.get_nowait()
    except queue.Empty:
        pass


if __name__ == "__main__":
    main()
