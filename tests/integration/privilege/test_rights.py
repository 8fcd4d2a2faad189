"""Rights held against what was asked for: too few, too many, too wide. Nothing but Python is needed."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.integration.privilege.rights import Right, bound, complaints, granted, question

RBAC = "rbac.authorization.k8s.io"
HOME, ELSEWHERE = "runtime-system", "elsewhere"

Rule = dict[str, Any]


def rule(group: str, resource: str, *verbs: str, **more: Any) -> Rule:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **more}


def role(rules: Sequence[Rule], namespace: str = "", account: str = "manager") -> list[dict[str, Any]]:
    """A role and its binding; without a namespace, those of the whole cluster."""
    metadata = {"name": account} | ({"namespace": namespace} if namespace else {})
    kind = "Role" if namespace else "ClusterRole"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": HOME}
    binding = {"kind": f"{kind}Binding", "metadata": metadata, "roleRef": {"kind": kind, "name": account}}
    return [{"kind": kind, "metadata": metadata, "rules": list(rules)}, binding | {"subjects": [subject]}]


def review(verb: str, resource: str, **more: str) -> dict[str, Any]:
    """As API servers ask it."""
    return {"spec": {"user": "manager", "resourceAttributes": {"verb": verb, "resource": resource, **more}}}


UNITS = rule("apps", "deployments", "list", "create")
STATUS = rule("apps", "deployments/status", "patch")
LEASE = rule("coordination.k8s.io", "leases", "get", resourceNames=["manager"])
ROLES = [*role([UNITS, STATUS]), *role([LEASE], HOME)]
ASKED = {
    question(each)
    for each in (
        review("list", "deployments", group="apps", version="v1"),
        review("create", "deployments", group="apps", namespace=ELSEWHERE),
        review("patch", "deployments", group="apps", subresource="status", namespace=ELSEWHERE, name="web"),
        review("get", "leases", group="coordination.k8s.io", namespace=HOME, name="manager"),
        {"spec": {"nonResourceAttributes": {"path": "/version", "verb": "get"}}},
    )
}


def test_rights_that_are_all_used_and_suffice_are_fine() -> None:
    assert complaints(granted(ROLES, "manager"), ASKED) == []


@pytest.mark.parametrize(
    ("left", "line"),
    [
        ([UNITS], "missing: patch deployments/status.apps named web in elsewhere"),
        ([rule("apps", "deployments", "create"), STATUS], "missing: list deployments.apps everywhere"),
    ],
)
def test_a_rule_that_is_taken_away_is_missing(left: list[Rule], line: str) -> None:
    assert complaints(granted([*role(left), *role([LEASE], HOME)], "manager"), ASKED) == [line]


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
def test_a_rule_that_is_added_is_unused(added: Rule, lines: list[str]) -> None:
    assert complaints(granted([*role([UNITS, STATUS, added]), *role([LEASE], HOME)], "manager"), ASKED) == lines


def test_a_role_does_not_reach_beyond_its_namespace_and_its_names() -> None:
    other = rule("coordination.k8s.io", "leases", "get", resourceNames=["activator"])
    found = complaints(
        granted([*role([UNITS, STATUS]), *role([LEASE], ELSEWHERE), *role([other], HOME)], "manager"), ASKED
    )
    assert found == [
        "missing: get leases.coordination.k8s.io named manager in runtime-system",
        "unused: get leases.coordination.k8s.io named manager in elsewhere",
        "unused: get leases.coordination.k8s.io named activator in runtime-system",
    ]


def test_a_right_everywhere_that_is_used_only_where_the_platform_is_installed_is_too_wide() -> None:
    found = complaints(granted(role([UNITS, STATUS, LEASE | {"resourceNames": []}]), "manager"), ASKED)
    assert found == ["too wide: get leases.coordination.k8s.io everywhere, used only in runtime-system"]


def test_a_cluster_role_may_be_bound_in_one_namespace() -> None:
    cluster_role, _ = role([UNITS])
    _, binding = role([], ELSEWHERE)
    bound_here = binding | {"roleRef": {"kind": "ClusterRole", "name": "manager"}}
    assert granted([cluster_role, bound_here], "manager") == {
        Right("deployments.apps", "list", ELSEWHERE),
        Right("deployments.apps", "create", ELSEWHERE),
    }


def test_the_rights_of_others_are_not_ones_own() -> None:
    assert granted(ROLES, "activator") == set()
    assert bound([*ROLES, *role([UNITS], account="other")]) == {
        "ServiceAccount/runtime-system/manager",
        "ServiceAccount/runtime-system/other",
    }
