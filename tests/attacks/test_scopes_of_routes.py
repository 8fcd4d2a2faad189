"""Every route accepts exactly the callers with its scope. A new route or scope must be added to the table."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_runtime.runtime_api.http.authentication import build_authenticator
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, Route, Scope
from gpu_runtime.runtime_api.http.token_entries import new_token
from gpu_runtime.runtime_api.openapi_routes import ROUTE_GROUPS
from gpu_runtime.runtime_api.settings import AuthenticationSettings, ServiceAccountScopeSettings
from tests.token_signer import FakeTokenIssuer, claims, sign
from tests.unit.runtime_api.http.http_harness import AppOptions, RunningApp, running_app

ROUTES_BY_SCOPE: Mapping[Scope | None, frozenset[str]] = {
    None: frozenset({"getHealth"}),
    Scope.RUNTIME: frozenset(
        {"listUnits", "createUnit", "getUnit", "updateUnit", "deleteUnit", "stopUnit", "startUnit", "extendUnit"}
        | {"listStorages", "createStorage", "getStorage", "updateStorage", "deleteStorage"}
        | {"listInvocations", "invoke", "getInvocation", "cancelInvocation"}
    ),
    Scope.OPERATOR: frozenset(
        {"createStockPool", "listStockPools", "getStockPool", "deleteStockPool"}
        | {"seedStock", "listStockUnits", "withdrawStockUnit", "getInventory", "getJob"}
        | {"listDeadLetters", "getDeadLetter", "deleteDeadLetter", "redriveDeadLetter"}
    ),
    Scope.WORKER: frozenset({"createWorker", "returnStock"}),
}
SCOPE_BY_ROUTE = {route: scope for scope, routes in ROUTES_BY_SCOPE.items() for route in routes}
ROUTES = [route for group in ROUTE_GROUPS for route in group.routes]

FILE_TOKENS = {scope.value: new_token() for scope in Scope} | {"expired": new_token()}
WEB = ServiceAccountScopeSettings(namespace="shop", name="web", scopes=("runtime",))
INVALID_AUTHORIZATIONS: dict[str, str | None] = {
    "no token": None,
    "an empty token": "Bearer ",
    "another scheme": f"Basic {FILE_TOKENS['operator']}",
    "an unknown token": f"Bearer {new_token()}",
    "an expired token of the file": f"Bearer {FILE_TOKENS['expired']}",
    "an expired token of a service account": f"Bearer {sign(claims(exp=time.time() - 1))}",
    "a token for another audience": f"Bearer {sign(claims(aud=['elsewhere']))}",
    "a token of another cluster": f"Bearer {sign(claims(), 'attacker', {'kid': 'cluster'})}",
}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    past = datetime.now(UTC) - timedelta(days=1)
    scopes = {scope.value: {"scopes": [scope.value]} for scope in Scope}
    expired: dict[str, Any] = {"scopes": [scope.value for scope in Scope], "expiresAt": past}
    entries = [
        {"name": name, "token": FILE_TOKENS[name], **each} for name, each in (scopes | {"expired": expired}).items()
    ]
    path.write_text(yaml.safe_dump({"tokens": entries}))
    return path


@asynccontextmanager
async def serving(route: Route, token_file: Path) -> AsyncIterator[RunningApp]:
    """Serve the route without its own handler, body and query, with the authenticator of the process."""

    async def answer(_request: APIRequest[Any, Any]) -> APIResponse:
        return APIResponse(200, "ok")

    settings = AuthenticationSettings(token_file=str(token_file), service_accounts=(WEB,))
    authenticator, *_ = build_authenticator(settings, FakeTokenIssuer())
    async with running_app(
        [replace(route, handler=answer, body=None, query=NoQuery)], AppOptions(authenticator=authenticator)
    ) as app:
        yield app


async def status(app: RunningApp, route: Route, authorization: str | None) -> int:
    path = route.path
    for parameter in ("{name}", "{namespace}", "{invocationID}", "{id}", "{operationID}"):
        path = path.replace(parameter, "a")
    assert "{" not in path, "add the parameter of the path"
    headers = {"Authorization": authorization} if authorization is not None else {}
    return (await app.request(route.method, path, headers=headers)).status


def test_table_contains_every_route_and_scope() -> None:
    assert {route.name: route.scope for route in ROUTES} == SCOPE_BY_ROUTE
    assert set(ROUTES_BY_SCOPE) == {None, *Scope}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: str(route.name))
async def test_route_accepts_only_callers_with_its_scope(route: Route, token_file: Path) -> None:
    required = SCOPE_BY_ROUTE[route.name]
    callers = {scope.value: f"Bearer {FILE_TOKENS[scope.value]}" for scope in Scope} | {
        "service account": f"Bearer {sign(claims())}",
        "service account without scopes": f"Bearer {sign(claims('shop/other'))}",
    }
    granted = {scope.value: {scope} for scope in Scope} | {"service account": {Scope.RUNTIME}}
    async with serving(route, token_file) as app:
        found = {name: await status(app, route, authorization) for name, authorization in callers.items()}
    assert found == {name: 200 if required is None or required in granted.get(name, set()) else 403 for name in callers}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: str(route.name))
async def test_route_rejects_callers_without_a_valid_token(route: Route, token_file: Path) -> None:
    expected = 200 if SCOPE_BY_ROUTE[route.name] is None else 401
    async with serving(route, token_file) as app:
        found = {name: await status(app, route, each) for name, each in INVALID_AUTHORIZATIONS.items()}
    assert found == dict.fromkeys(INVALID_AUTHORIZATIONS, expected)
