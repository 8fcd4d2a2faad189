"""The authenticated caller of a request, with its scopes."""

from dataclasses import dataclass
from typing import Protocol

from gpu_runtime.runtime_api.http.route import Scope


@dataclass(frozen=True)
class Caller:
    name: str
    scopes: frozenset[Scope] = frozenset()


ANONYMOUS = Caller("anonymous", frozenset(Scope))
"""The caller of every request if authentication is off, and of every request to a route without a scope."""


class Authenticator(Protocol):
    async def authenticate(self, authorization: str | None) -> Caller:
        """Return the caller that sent this Authorization header.

        Raises Unauthenticated if the header identifies no caller, and Unavailable if the token cannot be verified now.
        """
        ...


class AnonymousAuthenticator:
    """Grants every scope to every caller."""

    async def authenticate(self, authorization: str | None) -> Caller:  # noqa: ARG002 - the header is not checked
        return ANONYMOUS
