"""Generated files are complete, documented and the same every time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpu_runtime.activator.settings import ActivatorSettings
from gpu_runtime.contract.crd import DEFINITIONS
from gpu_runtime.contract.crd.well_known import role_of
from gpu_runtime.contract.validation import name_problems, pool_problems, storage_problems, unit_problems
from gpu_runtime.manifests import samples
from gpu_runtime.manifests.crd_manifest import custom_resource_definition
from gpu_runtime.manifests.generate import generated
from gpu_runtime.manifests.local_settings import (
    ACTIVATOR,
    CONTROLLER_MANAGER,
    RESULT_STORE,
    RUNTIME_API,
    WORKER_SIDECAR,
)
from gpu_runtime.manifests.settings_file import settings_file
from gpu_runtime.process.settings import Settings, load
from gpu_runtime.result_store.settings import ResultStoreSettings
from gpu_runtime.runtime_api.settings import RuntimeAPISettings

CONFIG = Path(__file__).parents[3] / "config"
SETTINGS = {
    "activator": ACTIVATOR,
    "controller-manager": CONTROLLER_MANAGER,
    "result-store": RESULT_STORE,
    "runtime-api": RUNTIME_API,
    "worker-sidecar": WORKER_SIDECAR,
}


def test_what_is_checked_in_is_what_the_code_says() -> None:
    assert {path: (CONFIG / path).read_text() for path in generated()} == generated()


def schemas(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: each.resource.kind)
def test_every_field_of_a_kind_is_described(definition: Any) -> None:
    version = custom_resource_definition(definition)["spec"]["versions"][0]
    root = version["schema"]["openAPIV3Schema"]["properties"]
    for part in ("spec", "status"):
        fields = [(path, schema) for path, schema in schemas(root[part], part) if not path.endswith("[]")]
        assert [path for path, schema in fields if not schema.get("description")] == []


@pytest.mark.parametrize("name", ["memory", "size", "capacity"])
def test_no_pattern_keeps_a_bad_quantity_from_the_controller(name: str) -> None:
    found = []
    for definition in DEFINITIONS:
        version = custom_resource_definition(definition)["spec"]["versions"][0]
        found += [s for path, s in schemas(version["schema"]["openAPIV3Schema"], "") if path.endswith(f".{name}")]
    assert found
    assert not any("pattern" in schema or "format" in schema for schema in found)


def test_samples_have_no_problems() -> None:
    for unit in (samples.STORING_UNIT, samples.STOCK_UNIT, samples.FUNCTION):
        assert unit_problems(unit.spec, role_of(unit.metadata.namespace)) == ()
        assert list(name_problems(unit.metadata.name)) == []
    assert pool_problems(samples.POOL.spec) == ()
    assert storage_problems(samples.STORAGE.spec) == ()


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_local_settings_load_and_show_every_setting(settings: Settings, request: pytest.FixtureRequest) -> None:
    path = CONFIG / "local" / f"{request.node.callspec.id}.yaml"
    assert load(path, type(settings)) == settings
    assert shape(yaml.safe_load(path.read_text())) == shape(msgspec.to_builtins(settings))


def shape(shown: Any) -> Any:
    """The keys, at every depth."""
    return {key: shape(value) for key, value in shown.items()} if isinstance(shown, dict) else None


@pytest.mark.parametrize("path", ["api/settings.yaml", "overlays/local/runtime-api.yaml"])
def test_the_settings_of_the_deployed_api_load(path: str) -> None:
    settings = load(CONFIG / path, RuntimeAPISettings)
    assert settings.authentication.mode == ("required" if path.startswith("api/") else "off")
    deployment = next(yaml.safe_load_all((CONFIG / "api" / "runtime-api.yaml").read_text()))
    grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    limits = settings.limits
    assert limits.drain_seconds + limits.request_seconds < settings.stop_grace_seconds < grace


def test_the_settings_of_the_deployed_result_store_fit_its_volume_and_its_grace() -> None:
    settings = load(CONFIG / "results" / "settings.yaml", ResultStoreSettings)
    manifests = yaml.safe_load_all((CONFIG / "results" / "result-store.yaml").read_text())
    by_kind = {manifest["kind"]: manifest["spec"] for manifest in manifests if "spec" in manifest}
    claimed = by_kind["PersistentVolumeClaim"]["resources"]["requests"]["storage"]
    assert settings.retention.bytes + 512 * 1024**2 < int(claimed.removesuffix("Gi")) * 1024**3
    pod = by_kind["Deployment"]["template"]["spec"]
    assert settings.stop_grace_seconds < pod["terminationGracePeriodSeconds"]
    mounted = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    assert str(Path(settings.database.path).parent) in mounted


def test_the_settings_of_the_deployed_activator_load_and_the_api_trusts_it() -> None:
    settings = load(CONFIG / "activator" / "settings.yaml", ActivatorSettings)
    deployment = next(yaml.safe_load_all((CONFIG / "activator" / "activator.yaml").read_text()))
    pod = deployment["spec"]["template"]["spec"]
    assert settings.stop_grace_seconds < pod["terminationGracePeriodSeconds"]
    (token,) = [each["projected"]["sources"][0] for each in pod["volumes"] if "projected" in each]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "token"]
    assert settings.api.token_file == f"{mount['mountPath']}/{token['serviceAccountToken']['path']}"
    authentication = load(CONFIG / "api" / "settings.yaml", RuntimeAPISettings).authentication
    assert token["serviceAccountToken"]["audience"] in authentication.audiences
    trusted = {(each.namespace, each.name): set(each.scopes) for each in authentication.service_accounts}
    assert trusted["runtime-system", pod["serviceAccountName"]] == {"operator", "runtime"}


def test_a_setting_without_a_docstring_cannot_be_shown() -> None:
    class Bare(Settings, frozen=True, kw_only=True):
        silent: int = 1

    with pytest.raises(LookupError, match=r"Bare\.silent has no docstring"):
        settings_file("bare", Bare())
