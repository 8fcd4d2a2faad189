"""What an account may do by its roles, beside what it was seen to do. Pure.

A wildcard is taken by its letter. Nobody ever asks for `*`, so it is a right that nobody uses.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, STOCK_NAMESPACE, SYSTEM_NAMESPACE

Object = Mapping[str, Any]

ALL_NAMESPACES = ""
PLATFORM_NAMESPACES = frozenset({SYSTEM_NAMESPACE, STOCK_NAMESPACE, INSTANCE_NAMESPACE, "default"})
"""Namespaces whose names are known when the platform is installed: for these, Roles would do."""
BOOTSTRAPPING_LABEL = "kubernetes.io/bootstrapping"


@dataclass(frozen=True, order=True)
class Right:
    """One thing that may be done; also a question whether somebody may do it, which then is about one place."""

    resource: str
    """With its subresource and its group, as in `deployments/status.apps`; or a path that is no resource's."""
    verb: str
    namespace: str = ALL_NAMESPACES
    name: str = ""
    """Empty: whatever its name is."""

    def covers(self, question: "Right") -> bool:
        return (
            (self.resource, self.verb) == (question.resource, question.verb)
            and self.namespace in (ALL_NAMESPACES, question.namespace)
            and self.name in ("", question.name)
        )

    def __str__(self) -> str:
        named = f" named {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{named} {f'in {self.namespace}' if self.namespace else 'everywhere'}"


def reviewed_right(review: Object) -> Right:
    """What a SubjectAccessReview asks."""
    about = review["spec"].get("resourceAttributes")
    if about is None:
        path = review["spec"]["nonResourceAttributes"]
        return Right(path["path"], path["verb"])
    resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
    name = _in_group(resource, about.get("group", ""))
    return Right(name, about["verb"], about.get("namespace", ALL_NAMESPACES), about.get("name", ""))


def granted_rights(roles: Iterable[Object], account: str, namespace: str = SYSTEM_NAMESPACE) -> set[Right]:
    """The rights that bindings to this very account give it. What every account has is not among them."""
    found = list(roles)
    rules = {_key(each["kind"], each["metadata"]): each.get("rules") or () for each in found if "roleRef" not in each}
    rights: set[Right] = set()
    for binding in (each for each in found if "roleRef" in each and _binds(each, account, namespace)):
        where = binding["metadata"].get("namespace", ALL_NAMESPACES)
        role = {"name": binding["roleRef"]["name"], "namespace": where}
        for rule in rules[_key(binding["roleRef"]["kind"], role)]:
            rights.update(_rights(rule, where))
    return rights


def bound_subjects(roles: Iterable[Object]) -> set[str]:
    """Everybody to whom a binding gives anything, except for those that come with Kubernetes."""
    bindings = [
        each for each in roles if "roleRef" in each and BOOTSTRAPPING_LABEL not in each["metadata"].get("labels", {})
    ]
    subjects = [subject for each in bindings for subject in each.get("subjects") or ()]
    return {"/".join(filter(None, (each["kind"], each.get("namespace"), each["name"]))) for each in subjects}


def right_findings(rights: Collection[Right], asked: Collection[Right]) -> list[str]:
    """A line for each right that is missing, that nobody used, and that reaches further than it was used."""
    return [*_missing(rights, asked), *_unused(rights, asked), *_cluster_wide(rights, asked)]


def _missing(rights: Collection[Right], asked: Collection[Right]) -> Iterator[str]:
    """Paths that are no resource's are left out: version and discovery are open to every account."""
    for each in sorted(asked):
        if not each.resource.startswith("/") and not any(right.covers(each) for right in rights):
            yield f"missing: {each}"


def _unused(rights: Collection[Right], asked: Collection[Right]) -> Iterator[str]:
    for right in sorted(rights):
        if not any(right.covers(each) for each in asked):
            yield f"unused: {right}"


def _cluster_wide(rights: Collection[Right], asked: Collection[Right]) -> Iterator[str]:
    for right in sorted(each for each in rights if each.namespace == ALL_NAMESPACES):
        used = {each.namespace for each in asked if right.covers(each)}
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
    """A ClusterRole has no namespace, from wherever it is referred to."""
    return kind, "" if kind == "ClusterRole" else metadata["namespace"], metadata["name"]
