"""Provisions hostPath volumes for PVCs of storage classes with the provisioner `localcluster/hostpath`.

A volume is a folder on this machine that outlives pods. An expansion changes only the recorded capacity.

A separate program: `python -m localcluster.hostpath_provisioner --kubeconfig FILE --volumes FOLDER`. It is
level-triggered: after a change of any PVC or volume it reconciles all of them.
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
"""Kubernetes sets this annotation to request a volume for a PVC: immediately, or when the first pod mounts the PVC,
depending on the binding mode of the storage class."""
PROVISIONED_BY_ANNOTATION = "pv.kubernetes.io/provisioned-by"
RESYNC_SECONDS = 30.0

log = logging.getLogger("provisioner")


class HostPathProvisioner:
    def __init__(self, client: Client, volumes: Path) -> None:
        self.client = client
        self.volumes_dir = volumes

    def reconcile(self) -> None:
        pvcs = [pvc for pvc in self.client.list(PersistentVolumeClaim, namespace="*") if _is_own_pvc(pvc)]
        volumes = {volume.metadata.name: volume for volume in self._own_volumes() if volume.metadata}
        for pvc in pvcs:
            volume = volumes.get(_volume_name(pvc))
            if volume is None:
                self.provision(pvc)
            elif _requested_size(pvc) != _capacity(volume) or _requested_size(pvc) != _reported_capacity(pvc):
                self.expand(pvc)
        for volume in volumes.values():
            if volume.status and volume.status.phase == "Released":
                self.delete(volume)

    def provision(self, pvc: PersistentVolumeClaim) -> None:
        assert pvc.metadata  # noqa: S101
        name = _volume_name(pvc)
        folder = self.volumes_dir / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # a pod must be able to write as any user
        reference = ObjectReference(
            apiVersion="v1",
            kind="PersistentVolumeClaim",
            name=pvc.metadata.name,
            namespace=pvc.metadata.namespace,
            uid=pvc.metadata.uid,
        )
        spec = PersistentVolumeSpec(
            accessModes=pvc.spec.accessModes if pvc.spec else None,
            capacity={"storage": _requested_size(pvc)},
            claimRef=reference,
            hostPath=HostPathVolumeSource(path=str(folder), type="Directory"),
            persistentVolumeReclaimPolicy="Delete",
            storageClassName=pvc.spec.storageClassName if pvc.spec else None,
        )
        metadata = ObjectMeta(name=name, annotations={PROVISIONED_BY_ANNOTATION: PROVISIONER_NAME})
        self.client.create(PersistentVolume(metadata=metadata, spec=spec))
        log.info("provisioned %s for %s/%s", name, pvc.metadata.namespace, pvc.metadata.name)

    def expand(self, pvc: PersistentVolumeClaim) -> None:
        """Set the capacity of the volume, then the capacity in the status of the PVC, as a real driver does.

        A PVC that is not bound yet is skipped.
        """
        if not (pvc.metadata and pvc.status and pvc.status.phase == "Bound"):
            return
        capacity = {"storage": _requested_size(pvc)}
        self.client.patch(PersistentVolume, _volume_name(pvc), {"spec": {"capacity": capacity}})
        self.client.patch(
            PersistentVolumeClaimStatus,
            str(pvc.metadata.name),
            {"status": {"capacity": capacity}},
            namespace=pvc.metadata.namespace,
        )
        log.info("expanded %s/%s to %s", pvc.metadata.namespace, pvc.metadata.name, _requested_size(pvc))

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


def _is_own_pvc(pvc: PersistentVolumeClaim) -> bool:
    deleted = bool(pvc.metadata and pvc.metadata.deletionTimestamp)
    provisioner = ((pvc.metadata and pvc.metadata.annotations) or {}).get(STORAGE_PROVISIONER_ANNOTATION)
    return provisioner == PROVISIONER_NAME and not deleted


def _volume_name(pvc: PersistentVolumeClaim) -> str:
    return f"pvc-{pvc.metadata and pvc.metadata.uid}"


def _requested_size(pvc: PersistentVolumeClaim) -> str:
    resources = pvc.spec and pvc.spec.resources
    return str(((resources and resources.requests) or {})["storage"])


def _reported_capacity(pvc: PersistentVolumeClaim) -> str | None:
    return ((pvc.status and pvc.status.capacity) or {}).get("storage")


def _capacity(volume: PersistentVolume) -> str | None:
    return ((volume.spec and volume.spec.capacity) or {}).get("storage")


def _watch(config: KubeConfig, kind: type, changes: "queue.Queue[None]") -> None:
    """Signal every change, and every interruption of the watch, because changes may have been missed then."""
    while True:
        try:
            with Client(config=config) as client:
                for _ in client.watch(kind, namespace="*" if kind is PersistentVolumeClaim else None):
                    changes.put(None)
        except httpx2.HTTPError as error:
            log.warning("watch of %s failed: %s", kind.__name__, error)
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
    with Client(config=config) as client:
        provisioner = HostPathProvisioner(client, options.volumes)
        is_watching = False
        while True:
            try:
                provisioner.reconcile()
            except httpx2.HTTPError as error:
                log.warning("reconcile failed, retrying: %s", error)
                threading.Event().wait(0.5)
                changes.put(None)
            else:
                # Not earlier: msgspec crashes if two threads decode the same type for the first time.
                if not is_watching:
                    _start_watches(config, changes)
                is_watching = True
            _wait_for_change(changes)


def _start_watches(config: KubeConfig, changes: "queue.Queue[None]") -> None:
    for kind in (PersistentVolumeClaim, PersistentVolume):
        threading.Thread(target=_watch, args=(config, kind, changes), daemon=True).start()


def _wait_for_change(changes: "queue.Queue[None]") -> None:
    """Wait for a change or the resync interval, and drop the other queued changes: one reconcile covers all of them."""
    try:
        changes.get(timeout=RESYNC_SECONDS)
        while True:
            changes.get_nowait()
    except queue.Empty:
        pass


if __name__ == "__main__":
    main()
