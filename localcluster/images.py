"""Builds container images without a registry: a Debian root layer from debootstrap, and additional layers on top.

The stand-in images replace public images of the same name. They share one layer with Python, nginx and a shell, and
differ only in their default command. Layers and archives are stored in the per-user cache. Their file names contain a
digest of the inputs.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster import apt_packages, binaries
from localcluster.errors import MissingRequirement
from localcluster.paths import PROJECT_ROOT, cache_dir, require_free_disk
from localcluster.progress import progress_step

RECIPE_VERSION = "1"
DEBIAN_PACKAGES = ("ca-certificates", "curl", "nginx-light", "python3")
SITE_PACKAGES_DIR = "usr/lib/python3/dist-packages"
CONTAINER_USER = "10001:10001"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MAX_CACHED_PRODUCT_IMAGES = 4
"""Every change of the sources leads to a new product image. The newest ones stay cached, so that switching between
branches needs no rebuild."""


@dataclass(frozen=True)
class Image:
    """The name that pods use, and the default command and user of the container."""

    name: str
    command: tuple[str, ...]
    user: str = ""


@dataclass(frozen=True)
class ImageArchive:
    """A file with one or more images that containerd imports."""

    path: Path
    images: tuple[Image, ...]


STAND_IN_IMAGES = (
    Image("python:3.12", ("python",)),
    Image("python:3.12-slim", ("python",)),
    Image("nginx:1.27", ("nginx", "-g", "daemon off;")),
    Image("busybox:1.36", ("sh",)),
    # For tests of pull credentials. Its command differs, so it is another image: once the kubelet has pulled an image
    # with credentials, it requires credentials for every name of this image.
    Image("localcluster/private:1", ("sh", "-c", "echo private")),
)
PAUSE_IMAGE = Image("localcluster/pause:1", ("/pause",), "65535:65535")
NATS_IMAGE = Image("nats:2.15", ("/nats-server", "--config", "/etc/nats/nats.conf"), CONTAINER_USER)
PRODUCT_IMAGE = Image("gpu-runtime:local", ("gpu-runtime", "--help"), CONTAINER_USER)


def image_archives() -> list[ImageArchive]:
    """Return the archives of all images that a local cluster needs. Missing archives are built."""
    return [stand_in_archive(), pause_archive(), nats_archive(), product_archive()]


def stand_in_archive() -> ImageArchive:
    return _build_archive("stand-ins", [_debian_layer()], STAND_IN_IMAGES)


def product_archive() -> ImageArchive:
    layer = _product_layer()
    archive = _build_archive("gpu-runtime", [_debian_layer(), layer], [PRODUCT_IMAGE])
    for path in (layer, archive.path):
        path.touch()
    _evict_oldest("gpu-runtime-*.oci.tar")
    _evict_oldest("gpu-runtime-*[0-9a-f].tar")
    return archive


def _evict_oldest(pattern: str) -> None:
    newest_first = sorted((cache_dir() / "images").glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest_first[MAX_CACHED_PRODUCT_IMAGES:]:
        path.unlink(missing_ok=True)


def pause_archive() -> ImageArchive:
    program = binaries.resolve(["pause"])["pause"]
    return _build_archive("pause", [_program_layer(program)], [PAUSE_IMAGE])


def nats_archive() -> ImageArchive:
    program = Path(sys.executable).with_name("nats-server")
    return _build_archive("nats", [_program_layer(program)], [NATS_IMAGE])


def _debian_layer() -> Path:
    source, release = apt_packages.package_archive()
    layer = _cache_path("debian", RECIPE_VERSION, release, *DEBIAN_PACKAGES, suffix=".tar")
    if not layer.exists():
        require_free_disk(layer, 2, "building container images")
        with progress_step(f"Building the Debian {release} root of the container images"):
            _build_layer(layer, lambda root: _debootstrap(root, release, source))
    return layer


def _debootstrap(root: Path, release: str, source: str) -> None:
    include = f"--include={','.join(DEBIAN_PACKAGES)}"
    # debootstrap runs in a mount namespace of its own. If it is killed, the kernel removes its mounts.
    command = ["unshare", "--mount", "debootstrap", "--variant=minbase", include, release, str(root), source]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        reason = (completed.stdout + completed.stderr).strip().splitlines()[-1:]
        raise MissingRequirement(
            f"debootstrap failed ({' '.join(reason)}): check that the Debian package archive is reachable."
        )
    for unused in ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt/lists", "var/cache/apt"):
        shutil.rmtree(root / unused, ignore_errors=True)
    (root / "usr/bin/python").symlink_to("python3")
    (root / "etc/apt/sources.list").unlink(missing_ok=True)


def _product_layer() -> Path:
    source_files = (path for path in (PROJECT_ROOT / "src").rglob("*") if path.is_file() and path.suffix != ".pyc")
    sources = [PROJECT_ROOT / "pyproject.toml", PROJECT_ROOT / "locks" / "runtime.txt", *sorted(source_files)]
    contents = [f"{path.relative_to(PROJECT_ROOT)} {_digest(path)}" for path in sources]
    layer = _cache_path(
        "gpu-runtime", RECIPE_VERSION, "compiled", apt_packages.python_version(), *contents, suffix=".tar"
    )
    if not layer.exists():
        with progress_step("Building gpu-runtime:local"):
            _build_layer(layer, _install_product)
    return layer


def _install_product(root: Path) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    wheels = root.parent / "wheels"
    _run(uv, "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", str(wheels), cwd=PROJECT_ROOT)
    target = [
        f"--python-version={apt_packages.python_version()}",
        f"--python-platform={platform.machine()}-manylinux_2_28",
    ]
    target += ["--only-binary=:all:", "--no-deps", "--target", str(root / SITE_PACKAGES_DIR)]
    _run(
        uv, "pip", "install", "--quiet", *target, "--require-hashes", "-r", str(PROJECT_ROOT / "locks" / "runtime.txt")
    )
    _run(uv, "pip", "install", "--quiet", *target, *map(str, wheels.glob("*.whl")))
    shutil.rmtree(root / SITE_PACKAGES_DIR / "bin", ignore_errors=True)
    _compile_bytecode(root / SITE_PACKAGES_DIR)
    script = root / "usr/local/bin/gpu-runtime"
    script.parent.mkdir(parents=True)
    script.write_text("#!/usr/bin/python3\nimport sys\nfrom gpu_runtime.cli.main import main\nsys.exit(main())\n")
    script.chmod(0o755)


def _compile_bytecode(packages: Path) -> None:
    """Compile the packages with the image's own Python.

    Containers have a read-only root file system. Without bytecode in the image, Python would compile at every start.
    """
    with tempfile.TemporaryDirectory(dir=packages.parents[len(SITE_PACKAGES_DIR.split("/"))]) as temporary:
        with tarfile.open(_debian_layer()) as debian_root:
            debian_root.extractall(temporary, filter="fully_trusted")  # noqa: S202 - our own
        compiled_packages = Path(temporary) / SITE_PACKAGES_DIR
        shutil.copytree(packages, compiled_packages, dirs_exist_ok=True)
        command = ["python3", "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", f"/{SITE_PACKAGES_DIR}"]
        _run("chroot", temporary, *command)
        for folder in [path for path in packages.rglob("*") if path.is_dir()]:
            compiled = compiled_packages / folder.relative_to(packages) / "__pycache__"
            if compiled.exists():
                shutil.copytree(compiled, folder / "__pycache__")


def _program_layer(program: Path) -> Path:
    """Build a layer that contains one static program and no other file."""
    layer = _cache_path(program.name, _digest(program), suffix=".tar")
    if not layer.exists():
        _build_layer(layer, lambda root: shutil.copy2(program, root / program.name))
    return layer


def _build_archive(name: str, layers: Sequence[Path], images: Sequence[Image]) -> ImageArchive:
    path = _cache_path(name, RECIPE_VERSION, *(layer.name for layer in layers), *map(str, images), suffix=".oci.tar")
    if not path.exists():
        require_free_disk(path, 1, "building container images")
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        with tarfile.open(staging, "w") as archive:
            _write_oci(archive, layers, images)
        staging.rename(path)
    return ImageArchive(path, tuple(images))


def _write_oci(archive: tarfile.TarFile, layers: Sequence[Path], images: Sequence[Image]) -> None:
    descriptors = [_layer_descriptor(layer) for layer in layers]
    for layer, descriptor in zip(layers, descriptors, strict=True):
        archive.add(layer, f"blobs/{descriptor['digest'].replace(':', '/')}")
    manifests = [_write_image(archive, descriptors, image) for image in images]
    _add_json(archive, "oci-layout", {"imageLayoutVersion": "1.0.0"})
    _add_json(archive, "index.json", {"schemaVersion": 2, "manifests": manifests})


def _write_image(archive: tarfile.TarFile, layers: Sequence[dict[str, Any]], image: Image) -> dict[str, Any]:
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "Cmd": list(image.command),
            "User": image.user,
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONUNBUFFERED=1"],
        },
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _add_blob(archive, "application/vnd.oci.image.config.v1+json", config),
        "layers": list(layers),
    }
    descriptor = _add_blob(archive, "application/vnd.oci.image.manifest.v1+json", manifest)
    prefix = "docker.io/" if "/" in image.name else "docker.io/library/"
    return descriptor | {"annotations": {"io.containerd.image.name": f"{prefix}{image.name}"}}


def _layer_descriptor(layer: Path) -> dict[str, Any]:
    return {
        "mediaType": "application/vnd.oci.image.layer.v1.tar",
        "digest": f"sha256:{_digest(layer)}",
        "size": layer.stat().st_size,
    }


def _add_blob(archive: tarfile.TarFile, media_type: str, content: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(content, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    if f"blobs/sha256/{digest}" not in archive.getnames():
        _add_json(archive, f"blobs/sha256/{digest}", content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _add_json(archive: tarfile.TarFile, name: str, content: dict[str, Any]) -> None:
    data = json.dumps(content, sort_keys=True).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _cache_path(name: str, *ingredients: str, suffix: str) -> Path:
    key = hashlib.sha256("\n".join(ingredients).encode()).hexdigest()[:12]
    return cache_dir() / "images" / f"{name}-{key}{suffix}"


def _build_layer(layer: Path, fill: Callable[[Path], object]) -> None:
    """Fill a folder and pack it into a layer. The layer file appears only when it is complete."""
    scratch = layer.with_name(f".{layer.name}.{os.getpid()}")
    root = scratch / "root"
    root.mkdir(parents=True)
    try:
        fill(root)
        staging = scratch / "layer.tar"
        _run("tar", "--create", "--file", str(staging), "--numeric-owner", "--sort=name", "--directory", str(root), ".")
        staging.rename(layer)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _run(*command: str, cwd: Path | None = None) -> None:
    completed = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if completed.returncode:
        reason = (completed.stderr or completed.stdout).strip()[-300:]
        raise MissingRequirement(f"`{' '.join(command[:3])} …` failed: {reason}")
