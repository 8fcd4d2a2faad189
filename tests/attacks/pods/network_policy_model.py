"""Evaluates NetworkPolicies as data: which connections do they allow? The nodes of the tests enforce no policies."""

from collections.abc import Iterable
from typing import Any

Object = dict[str, Any]


def allows_ingress(policies: Iterable[Object], labels: dict[str, str], port: int) -> bool:
    """Return whether any pod of the cluster may connect to this TCP port of a pod with these labels."""
    selecting = [each["spec"] for each in policies if _applies(each["spec"], labels, "Ingress")]
    if not selecting:
        return True  # without a policy, Kubernetes allows everything
    return any(_opens(rule, port) for spec in selecting for rule in spec.get("ingress") or [])


def limits_egress(policies: Iterable[Object], labels: dict[str, str]) -> bool:
    return any(_applies(each["spec"], labels, "Egress") for each in policies)


def _applies(spec: Object, labels: dict[str, str], direction: str) -> bool:
    selector = spec.get("podSelector") or {}
    expressions = selector.get("matchExpressions") or []
    return (
        direction in spec["policyTypes"]
        and (selector.get("matchLabels") or {}).items() <= labels.items()
        and all(_matches(each, labels) for each in expressions)
    )


def _matches(expression: Object, labels: dict[str, str]) -> bool:
    assert expression["operator"] == "DoesNotExist", expression
    return expression["key"] not in labels


def _opens(rule: Object, port: int) -> bool:
    ports = rule.get("ports") or []
    return not ports or any(each.get("port") == port and each.get("protocol", "TCP") == "TCP" for each in ports)
