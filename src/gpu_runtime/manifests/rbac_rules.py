"""Declares the Kubernetes permissions of each process, with the reasons. `rbac` builds the RBAC manifests from them."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.well_known import GROUP, SYSTEM_NAMESPACE

CACHE_VERBS = ("list", "watch")
READ_VERBS = ("get", *CACHE_VERBS)
CHILD_VERBS = (*READ_VERBS, "create", "update", "delete")
"""Verbs for owned children.

The process needs `update` to restore a lost owner reference. A cluster may allow this change only to a process that can
also delete the child.
"""


@dataclass(frozen=True)
class PolicyRule:
    reason: str
    """Why the process needs this rule."""
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    resource_names: tuple[str, ...] = ()
    """Names of the objects to which the rule is limited. Empty: all objects."""
    paths: tuple[str, ...] = ()
    """Paths that belong to no resource. A rule has either resources or paths."""


@dataclass(frozen=True)
class ProcessPermissions:
    name: str
    cluster_rules: tuple[PolicyRule, ...]
    """Rules for every namespace, because users choose the namespaces of units and pools."""
    namespace_rules: tuple[PolicyRule, ...] = ()
    """Rules for the system namespace."""
    stock_namespace_rules: tuple[PolicyRule, ...] = ()
    """Rules for the stock namespace."""
    unit_namespace_rules: tuple[PolicyRule, ...] = ()
    """Rules for every namespace in which callers can create units. The manifests contain the default one."""
    namespace: str = SYSTEM_NAMESPACE


CONTROLLER_MANAGER = ProcessPermissions(
    "controller-manager",
    cluster_rules=(
        PolicyRule("reconcile these objects", GROUP, ("gpuunits", "gpustorages", "stockpools"), CACHE_VERBS),
        PolicyRule(
            "ask the API server, not the cache, whether a unit exists before a destructive step",
            GROUP,
            ("gpuunits",),
            ("get",),
        ),
        PolicyRule(
            "write the status", GROUP, ("gpuunits/status", "gpustorages/status", "stockpools/status"), ("patch",)
        ),
        PolicyRule("stop and delete units whose lifetime is over", GROUP, ("gpuunits",), ("patch", "delete")),
        PolicyRule("attach storages and set their finalizers", GROUP, ("gpustorages",), ("patch",)),
        # blockOwnerDeletion in an owner reference requires the permission to update the finalizers of the owner.
        PolicyRule(
            "set owner references with blockOwnerDeletion",
            GROUP,
            ("gpuunits/finalizers", "stockpools/finalizers"),
            ("update",),
        ),
        PolicyRule("run the pods of units and pools", "apps", ("deployments",), CHILD_VERBS),
        PolicyRule("give units a network address", "", ("services",), CHILD_VERBS),
        PolicyRule("limit the access to units", "networking.k8s.io", ("networkpolicies",), CHILD_VERBS),
        PolicyRule(
            "store the data of storages", "", ("persistentvolumeclaims",), (*READ_VERBS, "create", "patch", "delete")
        ),
        PolicyRule(
            "check volume expansion and volume binding mode", "storage.k8s.io", ("storageclasses",), CACHE_VERBS
        ),
        PolicyRule("report why a pod does not start", "", ("pods",), CACHE_VERBS),
        PolicyRule(
            "delete orphaned ReplicaSets that the garbage collector missed", "apps", ("replicasets",), ("get", "delete")
        ),
        PolicyRule("report why a volume is not provisioned or not mounted", "events.k8s.io", ("events",), ("list",)),
        PolicyRule("record events", "events.k8s.io", ("events",), ("create", "patch")),
    ),
    namespace_rules=(
        PolicyRule(
            "check whether an operation can still create a unit before a storage is detached or the unit ends",
            GROUP,
            ("operations",),
            ("get",),
        ),
        PolicyRule(
            "give each function a queue, and delete the queues of deleted functions",
            GROUP,
            ("functionqueues",),
            (*CACHE_VERBS, "create", "patch", "delete"),
        ),
        # resourceNames cannot limit `create`, because the name is not known when the request is authorized.
        PolicyRule("leader election", "coordination.k8s.io", ("leases",), ("create",)),
        PolicyRule("leader election", "coordination.k8s.io", ("leases",), ("get", "patch"), ("controller-manager",)),
    ),
    stock_namespace_rules=(
        PolicyRule("end the pod of consumed stock if the unit's pod waits for its GPUs", "", ("pods",), ("delete",)),
    ),
    unit_namespace_rules=(
        PolicyRule("make a prepared pod the pod of its unit, or delete it", "", ("pods",), ("get", "patch", "delete")),
        PolicyRule("let a ReplicaSet adopt a prepared pod", "apps", ("replicasets",), ("create",)),
    ),
)

RUNTIME_API = ProcessPermissions(
    "runtime-api",
    cluster_rules=(
        # Cluster-wide, because the operator chooses the namespaces of units and pools in the settings.
        PolicyRule(
            "create and change units and storages for callers, and hand off stock",
            GROUP,
            ("gpuunits", "gpustorages"),
            (*READ_VERBS, "create", "patch", "delete"),
        ),
        PolicyRule(
            "create and delete pools; pools are never updated",
            GROUP,
            ("stockpools",),
            (*READ_VERBS, "create", "delete"),
        ),
        PolicyRule("authenticate callers", "authentication.k8s.io", ("tokenreviews",), ("create",)),
        # Kubernetes grants this to all service accounts, but some clusters remove that binding.
        PolicyRule(
            "verify tokens of callers without a TokenReview",
            "",
            (),
            ("get",),
            paths=("/.well-known/openid-configuration", "/openid/v1/jwks"),
        ),
    ),
    namespace_rules=(
        PolicyRule("store operations", GROUP, ("operations",), (*READ_VERBS, "create", "delete")),
        PolicyRule("update the status of operations", GROUP, ("operations/status",), ("patch",)),
        PolicyRule("find the queue of a function", GROUP, ("functionqueues",), CACHE_VERBS),
    ),
    unit_namespace_rules=(
        PolicyRule(
            "claim prepared pods, and delete those without a unit", "", ("pods",), (*READ_VERBS, "patch", "delete")
        ),
    ),
    stock_namespace_rules=(
        PolicyRule("find the node on which a stock unit reserves its GPUs", "", ("pods",), CACHE_VERBS),
    ),
)

ACTIVATOR = ProcessPermissions(
    "activator",
    cluster_rules=(
        # Cluster-wide, because users choose the namespaces of functions.
        PolicyRule("watch functions, workers and stock", GROUP, ("gpuunits",), CACHE_VERBS),
        PolicyRule(
            "create and delete workers, start and stop functions", GROUP, ("gpuunits",), ("create", "patch", "delete")
        ),
        PolicyRule("record events", "events.k8s.io", ("events",), ("create", "patch")),
    ),
    namespace_rules=(
        PolicyRule("check whether stock units are free", GROUP, ("operations",), ("get",)),
        PolicyRule("find the queues of functions", GROUP, ("functionqueues",), CACHE_VERBS),
        PolicyRule("record the workers that it creates", GROUP, ("functionqueues",), ("patch",)),
        PolicyRule("leader election", "coordination.k8s.io", ("leases",), ("create",)),
        PolicyRule("leader election", "coordination.k8s.io", ("leases",), ("get", "patch"), ("activator",)),
    ),
)

PROCESSES = (CONTROLLER_MANAGER, RUNTIME_API, ACTIVATOR)
