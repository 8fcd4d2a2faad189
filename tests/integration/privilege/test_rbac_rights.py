"""The comparison of granted and requested rights reports missing, unused and too wide rights. No cluster is needed."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.integration.privilege.rbac_rights import (
    Right,
    bound_subjects,
    granted_rights,
    reviewed_right,
    right_findings,
)

RBAC = "rbac.authorization.k8s.io"
HOME, ELSEWHERE = "runtime-system", "elsewhere"

Rule = dict[str, Any]


def rule(group: str, resource: str, *verbs: str, **fields: Any) -> Rule:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **fields}


def role(rules: Sequence[Rule], namespace: str = "", account: str = "manager") -> list[dict[str, Any]]:
    """Return a Role and its RoleBinding, or a ClusterRole and its binding if there is no namespace."""
    metadata = {"name": account} | ({"namespace": namespace} if namespace else {})
    kind = "Role" if namespace else "ClusterRole"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": HOME}
    binding = {"kind": f"{kind}Binding", "metadata": metadata, "roleRef": {"kind": kind, "name": account}}
    return [{"kind": kind, "metadata": metadata, "rules": list(rules)}, binding | {"subjects": [subject]}]


def review(verb: str, resource: str, **attributes: str) -> dict[str, Any]:
    """Return a SubjectAccessReview as an API server sends it."""
    return {"spec": {"user": "manager", "resourceAttributes": {"verb": verb, "resource": resource, **attributes}}}


UNITS = rule("apps", "deployments", "list", "create")
STATUS = rule("apps", "deployments/status", "patch")
LEASE = rule("coordination.k8s.io", "leases", "get", resourceNames=["manager"])
ROLES = [*role([UNITS, STATUS]), *role([LEASE], HOME)]
REQUESTED_RIGHTS = {
    reviewed_right(each)
    for each in (
        review("list", "deployments", group="apps", version="v1"),
        review("create", "deployments", group="apps", namespace=ELSEWHERE),
        review("patch", "deployments", group="apps", subresource="status", namespace=ELSEWHERE, name="web"),
        review("get", "leases", group="coordination.k8s.io", namespace=HOME, name="manager"),
        {"spec": {"nonResourceAttributes": {"path": "/version", "verb": "get"}}},
    )
}


def test_used_and_sufficient_rights_have_no_findings() -> None:
    assert right_findings(granted_rights(ROLES, "manager"), REQUESTED_RIGHTS) == []


@pytest.mark.parametrize(
    ("rules", "line"),
    [
        ([UNITS], "missing: patch deployments/status.apps named web in elsewhere"),
        ([rule("apps", "deployments", "create"), STATUS], "missing: list deployments.apps everywhere"),
    ],
)
def test_missing_rule_is_reported(rules: list[Rule], line: str) -> None:
    assert right_findings(granted_rights([*role(rules), *role([LEASE], HOME)], "manager"), REQUESTED_RIGHTS) == [line]


@pytest.mark.parametrize(
    ("added", "lines"),
    [
        (rule("", "secrets", "get"), ["unused: get secrets everywhere"]),
        (rule("apps", "deployments", "*"), ["unused: * deployments.apps everywhere"]),
        (rule("apps", "*", "list"), ["unused: list *.apps everywhere"]),
        (rule("", "deployments", "list"), ["unused: list deployments everywhere"]),
        ({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}, ["unused: get /metrics everywhere"]),
        (rule("apps", "deployments", "get", resourceNames=["a"]), ["unused: get deployments.apps named a everywhere"]),
    ],
)
def test_unused_rule_is_reported(added: Rule, lines: list[str]) -> None:
    assert (
        right_findings(
            granted_rights([*role([UNITS, STATUS, added]), *role([LEASE], HOME)], "manager"), REQUESTED_RIGHTS
        )
        == lines
    )


def test_role_covers_only_its_namespace_and_names() -> None:
    other = rule("coordination.k8s.io", "leases", "get", resourceNames=["activator"])
    findings = right_findings(
        granted_rights([*role([UNITS, STATUS]), *role([LEASE], ELSEWHERE), *role([other], HOME)], "manager"),
        REQUESTED_RIGHTS,
    )
    assert findings == [
        "missing: get leases.coordination.k8s.io named manager in runtime-system",
        "unused: get leases.coordination.k8s.io named manager in elsewhere",
        "unused: get leases.coordination.k8s.io named activator in runtime-system",
    ]


def test_cluster_wide_right_used_in_platform_namespaces_is_reported() -> None:
    findings = right_findings(
        granted_rights(role([UNITS, STATUS, LEASE | {"resourceNames": []}]), "manager"), REQUESTED_RIGHTS
    )
    assert findings == ["too wide: get leases.coordination.k8s.io everywhere, used only in runtime-system"]


def test_a_cluster_role_may_be_bound_in_one_namespace() -> None:
    cluster_role, _ = role([UNITS])
    _, binding = role([], ELSEWHERE)
    role_binding = binding | {"roleRef": {"kind": "ClusterRole", "name": "manager"}}
    assert granted_rights([cluster_role, role_binding], "manager") == {
        Right("deployments.apps", "list", ELSEWHERE),
        Right("deployments.apps", "create", ELSEWHERE),
    }


def test_bindings_of_other_accounts_are_ignored() -> None:
    assert granted_rights(ROLES, "activator") == set()
    assert bound_subjects([*ROLES, *role([UNITS], account="other")]) == {
        "ServiceAccount/runtime-system/manager",
        "ServiceAccount/runtime-system/other",
    }
