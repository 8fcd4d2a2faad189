"""The versions of the pod profile: the fields that the platform adds to all pods of units and pools.

Running pods keep the profile with which they were built. So a new version of the platform restarts no pod.

To change the pods that the platform builds:

1. Append a profile with the next version to `POD_PROFILES`. Never change a profile of a released version: the pods that
   have it would restart.
2. If the change needs a new field, give this field a value in all profiles. In the older ones, the value must not
   change their pods. The builders of pod templates read only the fields of the profile, never its version.
3. Add the pods of the new version to the test `test_pods_of_each_profile_are_the_recorded_ones`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_runtime.contract.crd.pod_record import PodRecord
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.kube.meta import ObjectMeta


@dataclass(frozen=True)
class PodProfile:
    version: int
    dropped_capabilities: tuple[str, ...]
    """Linux capabilities that the containers of users do not get."""
    sysctls: tuple[tuple[str, str], ...]
    """Kernel parameters of the pods that run containers of users."""
    hides_gpus: bool
    """Whether containers that reserve no GPUs get a variable with which container runtimes give them no GPUs."""
    socket_directory: tuple[tuple[str, str], ...]
    """The fields of the emptyDir with the socket of the framework."""
    sidecar_ephemeral_storage: str
    """Limit of the disk space of the sidecar: its log, because its file system is read-only."""


POD_PROFILES: tuple[PodProfile, ...] = (
    PodProfile(
        version=1,
        # With raw sockets, a user's program could read and forge the traffic of the sidecar in its pod.
        dropped_capabilities=("NET_RAW",),
        # Every group may open ICMP sockets, so that `ping` works without raw sockets.
        sysctls=(("net.ipv4.ping_group_range", "0 2147483647"),),
        # Images for GPUs contain NVIDIA_VISIBLE_DEVICES=all.
        hides_gpus=True,
        # The kernel rejects writes above the limit. On a disk, the kubelet would detect them only later.
        socket_directory=(("medium", "Memory"), ("sizeLimit", "1Mi")),
        sidecar_ephemeral_storage="1Gi",
    ),
)
"""All profiles, in the order of their versions."""


@dataclass(frozen=True)
class PodBuild:
    """What decides the pod template of an object, in addition to its spec and the settings."""

    profile: PodProfile
    platform_image: str = ""
    """The image of the container of the platform in the pod. Empty if there is none."""


def latest_profile() -> PodProfile:
    return POD_PROFILES[-1]


def find_profile(version: int | str) -> PodProfile | None:
    """Return the profile with this version, or None if this version of the platform does not know it."""
    return next((each for each in POD_PROFILES if str(each.version) == str(version)), None)


def choose_build(
    latest: PodBuild,
    record: PodRecord | None,
    owner: ObjectMeta,
    *,
    wants_pods: bool,
    matches_live: Callable[[PodBuild], bool],
) -> PodBuild:
    """Return the recorded build while the running pods can keep it, otherwise the latest one.

    If the spec has changed since the pods were built, `matches_live` decides: a change that replaces no pod, for
    example of a lifetime, must not replace the pod because of the profile.
    """
    profile = find_profile(record.profile) if record else None
    if record is None or profile is None or not wants_pods or record.roll_request != roll_request(owner):
        return latest
    recorded = PodBuild(profile, record.platform_image)
    is_unchanged = record.generation == owner.generation
    return recorded if is_unchanged or matches_live(recorded) else latest


def new_record(build: PodBuild, owner: ObjectMeta) -> PodRecord:
    return PodRecord(
        profile=build.profile.version,
        platform_image=build.platform_image,
        generation=owner.generation,
        roll_request=roll_request(owner),
    )


def roll_request(owner: ObjectMeta) -> str:
    return owner.annotations.get(Annotation.ROLL_REQUEST, "")[:64]
