"""A service account per process, and the roles that give it the rights it declares."""

from collections.abc import Sequence

from gpu_runtime.contract.crd.well_known import STOCK_NAMESPACE
from gpu_runtime.kube.meta import Manifest
from gpu_runtime.manifests.rbac_rules import Grant, Process

RBAC = "rbac.authorization.k8s.io"


def rbac(process: Process) -> list[Manifest]:
    account: Manifest = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": process.name, "namespace": process.namespace},
    }
    return [
        account,
        *_cluster_wide(process),
        *_within(process, process.namespace, process.at_home),
        *_within(process, STOCK_NAMESPACE, process.in_stock),
    ]


def _cluster_wide(process: Process) -> list[Manifest]:
    metadata = {"name": f"gpu-runtime-{process.name}"}
    return _role_and_binding(process, "Cluster", metadata, process.everywhere) if process.everywhere else []


def _within(process: Process, namespace: str, grants: Sequence[Grant]) -> list[Manifest]:
    metadata = {"name": process.name, "namespace": namespace}
    return _role_and_binding(process, "", metadata, grants) if grants else []


def _role_and_binding(process: Process, scope: str, metadata: Manifest, grants: Sequence[Grant]) -> list[Manifest]:
    return [
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": f"{scope}Role",
            "metadata": dict(metadata),
            "rules": [_rule(grant) for grant in grants],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": f"{scope}RoleBinding",
            "metadata": dict(metadata),
            "roleRef": {"apiGroup": RBAC, "kind": f"{scope}Role", "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": process.name, "namespace": process.namespace}],
        },
    ]


def _rule(grant: Grant) -> Manifest:
    rule: Manifest = {
        "apiGroups": [grant.group],
        "resources": list(grant.resources),
        "verbs": list(grant.verbs),
    }
    return rule | {"resourceNames": list(grant.names)} if grant.names else rule
