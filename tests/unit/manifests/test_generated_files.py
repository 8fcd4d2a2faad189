"""The generated files are up to date and documented, and the deployed settings are consistent with the manifests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpu_runtime.activator.settings import ActivatorSettings
from gpu_runtime.contract.crd import DEFINITIONS
from gpu_runtime.contract.crd.well_known import role_of
from gpu_runtime.contract.validation import name_errors, pool_errors, storage_errors, unit_errors
from gpu_runtime.manifests import samples
from gpu_runtime.manifests.crd_manifest import custom_resource_definition
from gpu_runtime.manifests.generate import generated_files
from gpu_runtime.manifests.local_settings import (
    ACTIVATOR,
    CONTROLLER_MANAGER,
    RESULT_STORE,
    RUNTIME_API,
    WORKER_SIDECAR,
)
from gpu_runtime.manifests.settings_file import settings_file
from gpu_runtime.process.settings import BaseSettings, load_settings
from gpu_runtime.result_store.settings import ResultStoreSettings
from gpu_runtime.runtime_api.settings import RuntimeAPISettings

CONFIG_DIR = Path(__file__).parents[3] / "config"
SETTINGS = {
    "activator": ACTIVATOR,
    "controller-manager": CONTROLLER_MANAGER,
    "result-store": RESULT_STORE,
    "runtime-api": RUNTIME_API,
    "worker-sidecar": WORKER_SIDECAR,
}


def test_generated_files_are_up_to_date() -> None:
    assert {path: (CONFIG_DIR / path).read_text() for path in generated_files()} == generated_files()


def schemas(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: each.resource.kind)
def test_every_crd_field_has_a_description(definition: Any) -> None:
    version = custom_resource_definition(definition)["spec"]["versions"][0]
    root = version["schema"]["openAPIV3Schema"]["properties"]
    for part in ("spec", "status"):
        fields = [(path, schema) for path, schema in schemas(root[part], part) if not path.endswith("[]")]
        assert [path for path, schema in fields if not schema.get("description")] == []


@pytest.mark.parametrize("name", ["memory", "size", "capacity"])
def test_quantity_fields_have_no_pattern(name: str) -> None:
    found = []
    for definition in DEFINITIONS:
        version = custom_resource_definition(definition)["spec"]["versions"][0]
        found += [s for path, s in schemas(version["schema"]["openAPIV3Schema"], "") if path.endswith(f".{name}")]
    assert found
    assert not any("pattern" in schema or "format" in schema for schema in found)


def test_samples_are_valid() -> None:
    for unit in (samples.UNIT_WITH_STORAGE, samples.STOCK_UNIT, samples.FUNCTION):
        assert unit_errors(unit.spec, role_of(unit.metadata.namespace)) == ()
        assert list(name_errors(unit.metadata.name)) == []
    assert pool_errors(samples.POOL.spec) == ()
    assert storage_errors(samples.STORAGE.spec) == ()


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_local_settings_load_and_list_every_setting(settings: BaseSettings, request: pytest.FixtureRequest) -> None:
    path = CONFIG_DIR / "local" / f"{request.node.callspec.id}.yaml"
    assert load_settings(path, type(settings)) == settings
    assert key_tree(yaml.safe_load(path.read_text())) == key_tree(msgspec.to_builtins(settings))


def key_tree(value: Any) -> Any:
    """Return the nested keys without the values."""
    return {key: key_tree(inner) for key, inner in value.items()} if isinstance(value, dict) else None


@pytest.mark.parametrize("path", ["runtime-api/settings.yaml", "overlays/local/runtime-api.yaml"])
def test_deployed_runtime_api_settings_load_and_fit_the_grace_period(path: str) -> None:
    settings = load_settings(CONFIG_DIR / path, RuntimeAPISettings)
    assert settings.authentication.mode == ("required" if path.startswith("runtime-api/") else "off")
    deployment = next(yaml.safe_load_all((CONFIG_DIR / "runtime-api" / "runtime-api.yaml").read_text()))
    grace_period = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    limits = settings.limits
    assert (
        limits.shutdown_delay_seconds + limits.request_timeout_seconds
        < settings.graceful_shutdown_timeout_seconds
        < grace_period
    )


def test_deployed_result_store_settings_fit_the_volume_and_the_grace_period() -> None:
    settings = load_settings(CONFIG_DIR / "result-store" / "settings.yaml", ResultStoreSettings)
    manifests = yaml.safe_load_all((CONFIG_DIR / "result-store" / "result-store.yaml").read_text())
    by_kind = {manifest["kind"]: manifest["spec"] for manifest in manifests if "spec" in manifest}
    volume_size = by_kind["PersistentVolumeClaim"]["resources"]["requests"]["storage"]
    assert settings.retention.max_bytes + 512 * 1024**2 < int(volume_size.removesuffix("Gi")) * 1024**3
    pod = by_kind["Deployment"]["template"]["spec"]
    assert settings.graceful_shutdown_timeout_seconds < pod["terminationGracePeriodSeconds"]
    mount_paths = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    assert str(Path(settings.database.path).parent) in mount_paths


def test_deployed_activator_settings_load_and_the_runtime_api_accepts_its_token() -> None:
    settings = load_settings(CONFIG_DIR / "activator" / "settings.yaml", ActivatorSettings)
    deployment = next(yaml.safe_load_all((CONFIG_DIR / "activator" / "activator.yaml").read_text()))
    pod = deployment["spec"]["template"]["spec"]
    assert settings.graceful_shutdown_timeout_seconds < pod["terminationGracePeriodSeconds"]
    (token,) = [each["projected"]["sources"][0] for each in pod["volumes"] if "projected" in each]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "token"]
    assert settings.runtime_api.token_file == f"{mount['mountPath']}/{token['serviceAccountToken']['path']}"
    authentication = load_settings(CONFIG_DIR / "runtime-api" / "settings.yaml", RuntimeAPISettings).authentication
    assert token["serviceAccountToken"]["audience"] in authentication.audiences
    scopes = {(each.namespace, each.name): set(each.scopes) for each in authentication.service_accounts}
    assert scopes["runtime-system", pod["serviceAccountName"]] == {"worker"}


def test_setting_without_a_docstring_is_rejected() -> None:
    class Undocumented(BaseSettings, frozen=True, kw_only=True):
        count: int = 1

    with pytest.raises(LookupError, match=r"Undocumented\.count has no docstring"):
        settings_file("description", Undocumented())
