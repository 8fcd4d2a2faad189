"""Every generated file, by its path under `config/`."""

from gpu_runtime.contract.crd import DEFINITIONS
from gpu_runtime.manifests.crd_manifest import crd_file_name, custom_resource_definition
from gpu_runtime.manifests.local_settings import (
    ACTIVATOR,
    CONTROLLER_MANAGER,
    RESULT_STORE,
    RUNTIME_API,
    WORKER_SIDECAR,
)
from gpu_runtime.manifests.rbac import rbac_manifests
from gpu_runtime.manifests.rbac_rules import PROCESSES
from gpu_runtime.manifests.samples import sample_manifests
from gpu_runtime.manifests.settings_file import settings_file
from gpu_runtime.manifests.yaml_writer import kustomization, to_yaml_documents


def generated_files() -> dict[str, str]:
    return crd_files() | rbac_files() | sample_files() | local_settings_files()


def crd_files() -> dict[str, str]:
    files = {
        f"bases/{crd_file_name(each)}": to_yaml_documents([custom_resource_definition(each)]) for each in DEFINITIONS
    }
    return _with_kustomization("crd", files)


def rbac_files() -> dict[str, str]:
    return _with_kustomization(
        "rbac", {f"{process.name}.yaml": to_yaml_documents(rbac_manifests(process)) for process in PROCESSES}
    )


def sample_files() -> dict[str, str]:
    return _with_kustomization(
        "samples", {name: to_yaml_documents([manifest]) for name, manifest in sample_manifests().items()}
    )


def local_settings_files() -> dict[str, str]:
    managing = (
        "The controller manager on a developer's machine. Every setting is here; all but the images may be left out."
    )
    serving = (
        "The runtime API on a developer's machine. Every setting is here; all but the authentication may be left out."
    )
    storing = (
        "The result store on a developer's machine, instead of the one in the platform and not beside it. Every setting"
        " is here, and may be left out."
    )
    beside = (
        "A worker sidecar on a developer's machine, beside a framework that runs there. Every setting is here; all but"
        " requestID, worker and namespace may be left out. In the cluster the controller manager writes it."
    )
    activating = "The activator on a developer's machine. Every setting is here; any may be left out."
    return {
        "local/activator.yaml": settings_file(activating, ACTIVATOR),
        "local/controller-manager.yaml": settings_file(managing, CONTROLLER_MANAGER),
        "local/result-store.yaml": settings_file(storing, RESULT_STORE),
        "local/runtime-api.yaml": settings_file(serving, RUNTIME_API),
        "local/worker-sidecar.yaml": settings_file(beside, WORKER_SIDECAR),
    }


def _with_kustomization(name: str, files: dict[str, str]) -> dict[str, str]:
    """The files under one folder, with the kustomization that names them."""
    complete = {"kustomization.yaml": kustomization(files)} | files
    return {f"{name}/{path}": text for path, text in complete.items()}
