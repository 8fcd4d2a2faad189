"""Who calls, as the edge needs to know it."""

from dataclasses import dataclass
from typing import Protocol

from gpu_runtime.contract.errors import Forbidden
from gpu_runtime.runtime_api.http.route import Scope


@dataclass(frozen=True)
class Caller:
    name: str
    scopes: frozenset[Scope] = frozenset()

    def require_scope(self, scope: Scope) -> None:
        if scope not in self.scopes:
            has = f"it has {', '.join(sorted(self.scopes))}" if self.scopes else "it has none"
            raise Forbidden(f"{self.name} lacks the scope {scope}; {has}")


ANONYMOUS = Caller("anonymous", frozenset(Scope))
"""Everybody, where authentication is off."""


class Authenticator(Protocol):
    async def authenticate(self, authorization: str | None) -> Caller:
        """Who sent this header; Unauthenticated where that cannot be said, Unavailable where it cannot be found out."""
        ...


class AnonymousAuthenticator:
    """Everybody may do everything."""

    async def authenticate(self, authorization: str | None) -> Caller:  # noqa: ARG002 - nobody is asked
        return ANONYMOUS
