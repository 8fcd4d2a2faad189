"""What each process may do in the cluster, and what for. The RBAC manifests come from here."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.well_known import GROUP, SYSTEM_NAMESPACE

CACHE_VERBS = ("list", "watch")
READ_VERBS = ("get", *CACHE_VERBS)
CHILD_VERBS = (*READ_VERBS, "create", "update", "delete")
"""Of what is owned. A child that lost its owner reference gets it back, which a cluster may allow only to those who
could delete the child."""


@dataclass(frozen=True)
class PolicyRule:
    reason: str
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    resource_names: tuple[str, ...] = ()
    """Only these objects, where the names are known."""


@dataclass(frozen=True)
class ProcessPermissions:
    name: str
    cluster_rules: tuple[PolicyRule, ...]
    """In every namespace: units and pools live wherever their owners put them."""
    namespace_rules: tuple[PolicyRule, ...] = ()
    """Only in the platform's own namespace."""
    stock_namespace_rules: tuple[PolicyRule, ...] = ()
    """Only where the stock is."""
    namespace: str = SYSTEM_NAMESPACE


CONTROLLER_MANAGER = ProcessPermissions(
    "controller-manager",
    cluster_rules=(
        PolicyRule("what it reconciles", GROUP, ("gpuunits", "gpustorages", "stockpools"), CACHE_VERBS),
        PolicyRule("whether a unit is there, where much depends on it", GROUP, ("gpuunits",), ("get",)),
        PolicyRule(
            "reporting on it", GROUP, ("gpuunits/status", "gpustorages/status", "stockpools/status"), ("patch",)
        ),
        PolicyRule("attachment and protection of storages", GROUP, ("gpustorages",), ("patch",)),
        # A child blocks its owner's deletion, which the API server allows to those who could finalize the owner.
        PolicyRule("owning children", GROUP, ("gpuunits/finalizers", "stockpools/finalizers"), ("update",)),
        PolicyRule("the workload of units and pools", "apps", ("deployments",), CHILD_VERBS),
        PolicyRule("their addresses", "", ("services",), CHILD_VERBS),
        PolicyRule("what of them can be reached", "networking.k8s.io", ("networkpolicies",), CHILD_VERBS),
        PolicyRule("the data of storages", "", ("persistentvolumeclaims",), (*READ_VERBS, "create", "patch", "delete")),
        PolicyRule("whether a class can grow, and when it binds", "storage.k8s.io", ("storageclasses",), CACHE_VERBS),
        PolicyRule("why a workload does not start", "", ("pods",), CACHE_VERBS),
        PolicyRule("what the garbage collector has overlooked", "apps", ("replicasets",), ("get", "delete")),
        PolicyRule("why a volume is not made", "events.k8s.io", ("events",), ("list",)),
        PolicyRule("telling what happened", "events.k8s.io", ("events",), ("create", "patch")),
    ),
    namespace_rules=(
        PolicyRule("whether a unit that a storage is held for may still come", GROUP, ("operations",), ("get",)),
        # A name cannot limit a create: the object does not have it yet when the right is checked.
        PolicyRule("leader election", "coordination.k8s.io", ("leases",), ("create",)),
        PolicyRule("leader election", "coordination.k8s.io", ("leases",), ("get", "patch"), ("controller-manager",)),
    ),
)

RUNTIME_API = ProcessPermissions(
    "runtime-api",
    cluster_rules=(
        # Not only where the settings allow units and pools: those are names that the operator chooses.
        PolicyRule(
            "what callers ask for, and the handoff",
            GROUP,
            ("gpuunits", "gpustorages"),
            (*READ_VERBS, "create", "patch", "delete"),
        ),
        PolicyRule("pools, which come and go as they are", GROUP, ("stockpools",), (*READ_VERBS, "create", "delete")),
        PolicyRule("whose token a caller has", "authentication.k8s.io", ("tokenreviews",), ("create",)),
    ),
    namespace_rules=(
        PolicyRule("the record of operations", GROUP, ("operations",), (*READ_VERBS, "create", "delete")),
        PolicyRule("their progress", GROUP, ("operations/status",), ("patch",)),
    ),
    stock_namespace_rules=(PolicyRule("the node on which a stock unit holds its GPUs", "", ("pods",), CACHE_VERBS),),
)

ACTIVATOR = ProcessPermissions(
    "activator",
    cluster_rules=(
        # Not only where the settings of others allow units: functions live where their owners put them.
        PolicyRule("functions, their workers, and what stock there is", GROUP, ("gpuunits",), CACHE_VERBS),
        PolicyRule(
            "workers that come and go, functions that sleep", GROUP, ("gpuunits",), ("create", "patch", "delete")
        ),
        PolicyRule("telling what happened", "events.k8s.io", ("events",), ("create", "patch")),
    ),
    namespace_rules=(
        PolicyRule("whether the handoff that made a worker is finished", GROUP, ("operations",), ("get",)),
        PolicyRule("leader election", "coordination.k8s.io", ("leases",), ("create",)),
        PolicyRule("leader election", "coordination.k8s.io", ("leases",), ("get", "patch"), ("activator",)),
    ),
)

PROCESSES = (CONTROLLER_MANAGER, RUNTIME_API, ACTIVATOR)
