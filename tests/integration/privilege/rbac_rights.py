"""Compares the rights that roles grant to an account with the rights that the account has requested. Pure functions.

A wildcard is treated as a literal name. No request ever asks for `*`, so a rule with a wildcard is reported as unused.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, STOCK_NAMESPACE, SYSTEM_NAMESPACE

Object = Mapping[str, Any]

ALL_NAMESPACES = ""
PLATFORM_NAMESPACES = frozenset({SYSTEM_NAMESPACE, STOCK_NAMESPACE, INSTANCE_NAMESPACE, "default"})
"""The namespaces that are known when the platform is installed. Roles are sufficient for these namespaces."""
PUBLIC_PATHS = frozenset({"/version", "/api", "/apis", "/healthz", "/livez", "/readyz"})
"""Paths of no resource that Kubernetes grants to every account."""
BOOTSTRAPPING_LABEL = "kubernetes.io/bootstrapping"


@dataclass(frozen=True, order=True)
class Right:
    """A granted right, or the right that an authorization request asks for. A request concerns one namespace."""

    resource: str
    """The resource with its subresource and group, such as `deployments/status.apps`, or a non-resource path."""
    verb: str
    namespace: str = ALL_NAMESPACES
    name: str = ""
    """The name of the object. Empty for all names."""

    def covers(self, requested: "Right") -> bool:
        return (
            (self.resource, self.verb) == (requested.resource, requested.verb)
            and self.namespace in (ALL_NAMESPACES, requested.namespace)
            and self.name in ("", requested.name)
        )

    def __str__(self) -> str:
        named = f" named {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{named} {f'in {self.namespace}' if self.namespace else 'everywhere'}"


def reviewed_right(review: Object) -> Right:
    """Return the right that a SubjectAccessReview asks for."""
    attributes = review["spec"].get("resourceAttributes")
    if attributes is None:
        path = review["spec"]["nonResourceAttributes"]
        return Right(path["path"], path["verb"])
    resource = "/".join(filter(None, (attributes["resource"], attributes.get("subresource"))))
    name = _in_group(resource, attributes.get("group", ""))
    return Right(name, attributes["verb"], attributes.get("namespace", ALL_NAMESPACES), attributes.get("name", ""))


def granted_rights(roles: Iterable[Object], account: str, namespace: str = SYSTEM_NAMESPACE) -> set[Right]:
    """Return the rights from bindings to this account. Bindings to groups, such as all accounts, are not included."""
    objects = list(roles)
    rules = {_key(each["kind"], each["metadata"]): each.get("rules") or () for each in objects if "roleRef" not in each}
    rights: set[Right] = set()
    for binding in (each for each in objects if "roleRef" in each and _binds(each, account, namespace)):
        binding_namespace = binding["metadata"].get("namespace", ALL_NAMESPACES)
        role = {"name": binding["roleRef"]["name"], "namespace": binding_namespace}
        for rule in rules[_key(binding["roleRef"]["kind"], role)]:
            rights.update(_rights(rule, binding_namespace))
    return rights


def bound_subjects(roles: Iterable[Object]) -> set[str]:
    """Return the subjects of all bindings, except for the default bindings of Kubernetes."""
    bindings = [
        each for each in roles if "roleRef" in each and BOOTSTRAPPING_LABEL not in each["metadata"].get("labels", {})
    ]
    subjects = [subject for each in bindings for subject in each.get("subjects") or ()]
    return {"/".join(filter(None, (each["kind"], each.get("namespace"), each["name"]))) for each in subjects}


def right_findings(rights: Collection[Right], requested: Collection[Right]) -> list[str]:
    """Return a line for each right that is missing, unused, or granted for more namespaces than necessary."""
    return [*_missing(rights, requested), *_unused(rights, requested), *_cluster_wide(rights, requested)]


def _missing(rights: Collection[Right], requested: Collection[Right]) -> Iterator[str]:
    for each in sorted(requested):
        if each.resource not in PUBLIC_PATHS and not any(right.covers(each) for right in rights):
            yield f"missing: {each}"


def _unused(rights: Collection[Right], requested: Collection[Right]) -> Iterator[str]:
    for right in sorted(rights):
        if not any(right.covers(each) for each in requested):
            yield f"unused: {right}"


def _cluster_wide(rights: Collection[Right], requested: Collection[Right]) -> Iterator[str]:
    for right in sorted(each for each in rights if each.namespace == ALL_NAMESPACES):
        used = {each.namespace for each in requested if right.covers(each)}
        if used and used <= PLATFORM_NAMESPACES:
            yield f"too wide: {right}, used only in {', '.join(sorted(used))}"


def _rights(rule: Object, namespace: str) -> Iterator[Right]:
    for path, verb in product(rule.get("nonResourceURLs", ()), rule["verbs"]):
        yield Right(path, verb)
    names = rule.get("resourceNames") or [""]
    for group, resource, verb, name in product(
        rule.get("apiGroups", ()), rule.get("resources", ()), rule["verbs"], names
    ):
        yield Right(_in_group(resource, group), verb, namespace, name)


def _in_group(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource


def _binds(binding: Object, account: str, namespace: str) -> bool:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return any(subject.items() <= each.items() for each in binding.get("subjects") or ())


def _key(kind: str, metadata: Object) -> tuple[str, str, str]:
    """Return the key of a role. A ClusterRole has no namespace, even if a RoleBinding refers to it."""
    return kind, "" if kind == "ClusterRole" else metadata["namespace"], metadata["name"]
