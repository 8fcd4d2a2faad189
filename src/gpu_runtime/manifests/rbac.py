"""Builds the service account, roles and role bindings of a process from its declared permissions."""

from collections.abc import Sequence

from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, STOCK_NAMESPACE
from gpu_runtime.kube.meta import Manifest
from gpu_runtime.manifests.rbac_rules import PolicyRule, ProcessPermissions

RBAC_GROUP = "rbac.authorization.k8s.io"


def rbac_manifests(process: ProcessPermissions) -> list[Manifest]:
    account: Manifest = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": process.name, "namespace": process.namespace},
    }
    namespaces = (process.namespace, STOCK_NAMESPACE, INSTANCE_NAMESPACE)
    own, stock, units = ({"name": process.name, "namespace": each} for each in namespaces)
    return [
        account,
        *_role_and_binding(process, "Cluster", {"name": f"gpu-runtime-{process.name}"}, process.cluster_rules),
        *_role_and_binding(process, "", own, process.namespace_rules),
        *_role_and_binding(process, "", stock, process.stock_namespace_rules),
        *_role_and_binding(process, "", units, process.unit_namespace_rules),
    ]


def _role_and_binding(
    process: ProcessPermissions, scope: str, metadata: Manifest, rules: Sequence[PolicyRule]
) -> list[Manifest]:
    """Return the role and its binding. Return nothing if the process has no rules of this scope."""
    if not rules:
        return []
    return [
        {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": f"{scope}Role",
            "metadata": dict(metadata),
            "rules": [_rule(each) for each in rules],
        },
        {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": f"{scope}RoleBinding",
            "metadata": dict(metadata),
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": f"{scope}Role", "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": process.name, "namespace": process.namespace}],
        },
    ]


def _rule(policy_rule: PolicyRule) -> Manifest:
    if policy_rule.paths:
        return {"nonResourceURLs": list(policy_rule.paths), "verbs": list(policy_rule.verbs)}
    rule: Manifest = {
        "apiGroups": [policy_rule.group],
        "resources": list(policy_rule.resources),
        "verbs": list(policy_rule.verbs),
    }
    return rule | {"resourceNames": list(policy_rule.resource_names)} if policy_rule.resource_names else rule
