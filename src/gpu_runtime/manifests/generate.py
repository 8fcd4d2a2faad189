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
    crds = {
        f"bases/{crd_file_name(each)}": to_yaml_documents([custom_resource_definition(each)]) for each in DEFINITIONS
    }
    rbac = {f"{process.name}.yaml": to_yaml_documents(rbac_manifests(process)) for process in PROCESSES}
    samples = {name: to_yaml_documents([manifest]) for name, manifest in sample_manifests().items()}
    kustomizations = _with_kustomization("crd", crds) | _with_kustomization("rbac", rbac)
    return kustomizations | _with_kustomization("samples", samples) | local_settings_files()


def local_settings_files() -> dict[str, str]:
    files = (
        ("activator", ACTIVATOR, "each is optional."),
        ("controller-manager", CONTROLLER_MANAGER, "only the images are required."),
        ("result-store", RESULT_STORE, "each is optional. Run it instead of the result store of the platform."),
        ("runtime-api", RUNTIME_API, "only the authentication is required."),
        (
            "worker-sidecar",
            WORKER_SIDECAR,
            "only functionID, requestID, worker and namespace are required. The controller manager writes them.",
        ),
    )
    beginning = "Settings of the process on a developer's machine. All settings are listed;"
    return {f"local/{name}.yaml": settings_file(f"{beginning} {note}", settings) for name, settings, note in files}


def _with_kustomization(name: str, files: dict[str, str]) -> dict[str, str]:
    """Prefix the paths with a directory, and add a kustomization.yaml that lists the files."""
    all_files = {"kustomization.yaml": kustomization(files)} | files
    return {f"{name}/{path}": text for path, text in all_files.items()}
