"""Generates the content of every generated file, by its path under `config/`."""

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
    return {
        "local/activator.yaml": settings_file(
            "Settings of an activator on a developer's machine. All settings are listed; each is optional.", ACTIVATOR
        ),
        "local/controller-manager.yaml": settings_file(
            "Settings of a controller manager on a developer's machine. All settings are listed; only the images are"
            " required.",
            CONTROLLER_MANAGER,
        ),
        "local/result-store.yaml": settings_file(
            "Settings of a result store on a developer's machine. Run it instead of the result store of the platform,"
            " not in addition. All settings are listed; each is optional.",
            RESULT_STORE,
        ),
        "local/runtime-api.yaml": settings_file(
            "Settings of a runtime API on a developer's machine. All settings are listed; only the authentication is"
            " required.",
            RUNTIME_API,
        ),
        "local/worker-sidecar.yaml": settings_file(
            "Settings of a worker sidecar on a developer's machine, for a framework that runs there. All settings are"
            " listed; only requestID, worker and namespace are required. In the cluster the controller manager writes"
            " these settings.",
            WORKER_SIDECAR,
        ),
    }


def _with_kustomization(name: str, files: dict[str, str]) -> dict[str, str]:
    """Prefix the paths with a directory, and add a kustomization.yaml that lists the files."""
    all_files = {"kustomization.yaml": kustomization(files)} | files
    return {f"{name}/{path}": text for path, text in all_files.items()}
