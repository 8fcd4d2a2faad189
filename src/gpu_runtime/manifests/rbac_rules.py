"""What each process may do in the cluster, and what for. The RBAC manifests come from here."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.well_known import GROUP, SYSTEM_NAMESPACE

CACHE = ("list", "watch")
READ = ("get", *CACHE)
CHILD = (*READ, "create", "update", "delete")
"""Of what is owned. A child that lost its owner reference gets it back, which a cluster may allow only to those who
could delete the child."""


@dataclass(frozen=True)
class Grant:
    because: str
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Only these objects, where the names are known."""


@dataclass(frozen=True)
class Process:
    name: str
    everywhere: tuple[Grant, ...]
    """In every namespace: units and pools live wherever their owners put them."""
    at_home: tuple[Grant, ...] = ()
    """Only in the platform's own namespace."""
    in_stock: tuple[Grant, ...] = ()
    """Only where the stock is."""
    namespace: str = SYSTEM_NAMESPACE


CONTROLLER_MANAGER = Process(
    "controller-manager",
    everywhere=(
        Grant("what it reconciles", GROUP, ("gpuunits", "gpustorages", "stockpools"), CACHE),
        Grant("whether a unit is there, where much depends on it", GROUP, ("gpuunits",), ("get",)),
        Grant("reporting on it", GROUP, ("gpuunits/status", "gpustorages/status", "stockpools/status"), ("patch",)),
        Grant("attachment and protection of storages", GROUP, ("gpustorages",), ("patch",)),
        # A child blocks its owner's deletion, which the API server allows to those who could finalize the owner.
        Grant("owning children", GROUP, ("gpuunits/finalizers", "stockpools/finalizers"), ("update",)),
        Grant("the workload of units and pools", "apps", ("deployments",), CHILD),
        Grant("their addresses", "", ("services",), CHILD),
        Grant("what of them can be reached", "networking.k8s.io", ("networkpolicies",), CHILD),
        Grant("the data of storages", "", ("persistentvolumeclaims",), (*READ, "create", "patch", "delete")),
        Grant("whether a class can grow, and when it binds", "storage.k8s.io", ("storageclasses",), CACHE),
        Grant("why a workload does not start", "", ("pods",), CACHE),
        Grant("what the garbage collector has overlooked", "apps", ("replicasets",), ("get", "delete")),
        Grant("why a volume is not made", "events.k8s.io", ("events",), ("list",)),
        Grant("telling what happened", "events.k8s.io", ("events",), ("create", "patch")),
    ),
    at_home=(
        Grant("whether a unit that a storage is held for may still come", GROUP, ("operations",), ("get",)),
        # A name cannot limit a create: the object does not have it yet when the right is checked.
        Grant("leader election", "coordination.k8s.io", ("leases",), ("create",)),
        Grant("leader election", "coordination.k8s.io", ("leases",), ("get", "patch"), ("controller-manager",)),
    ),
)

RUNTIME_API = Process(
    "runtime-api",
    everywhere=(
        # Not only where the settings allow units and pools: those are names that the operator chooses.
        Grant(
            "what callers ask for, and the handoff",
            GROUP,
            ("gpuunits", "gpustorages"),
            (*READ, "create", "patch", "delete"),
        ),
        Grant("pools, which come and go as they are", GROUP, ("stockpools",), (*READ, "create", "delete")),
        Grant("whose token a caller has", "authentication.k8s.io", ("tokenreviews",), ("create",)),
    ),
    at_home=(
        Grant("the record of operations", GROUP, ("operations",), (*READ, "create", "delete")),
        Grant("their progress", GROUP, ("operations/status",), ("patch",)),
    ),
    in_stock=(Grant("the node on which a stock unit holds its GPUs", "", ("pods",), CACHE),),
)

ACTIVATOR = Process(
    "activator",
    everywhere=(
        # Not only where the settings of others allow units: functions live where their owners put them.
        Grant("functions, their workers, and what stock there is", GROUP, ("gpuunits",), CACHE),
        Grant("workers that come and go, functions that sleep", GROUP, ("gpuunits",), ("create", "patch", "delete")),
        Grant("telling what happened", "events.k8s.io", ("events",), ("create", "patch")),
    ),
    at_home=(
        Grant("whether the handoff that made a worker is finished", GROUP, ("operations",), ("get",)),
        Grant("leader election", "coordination.k8s.io", ("leases",), ("create",)),
        Grant("leader election", "coordination.k8s.io", ("leases",), ("get", "patch"), ("activator",)),
    ),
)

PROCESSES = (CONTROLLER_MANAGER, RUNTIME_API, ACTIVATOR)
