"""Binaries are used if their version is accepted, and built if they are missing. A failed build is reported."""

import stat
from pathlib import Path

import pytest

from localcluster import binaries
from localcluster.errors import MissingRequirement


def program(folder: Path, name: str, output: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(autouse=True)
def empty_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)


@pytest.mark.parametrize(
    ("name", "output", "is_accepted"),
    [
        ("kube-apiserver", "Kubernetes v1.36.4", True),
        ("kube-apiserver", "Kubernetes v1.36.0", True),
        ("kube-apiserver", "Kubernetes v1.35.4", False),
        ("kube-apiserver", "Kubernetes v1.360.1", False),
        ("kubectl", "Client Version: v1.36.1", True),
        ("kubectl", "Client Version: v1.32.4-dispatcher", False),
        ("etcd", "etcd Version: 3.6.8", True),
        ("etcd", "etcd Version: 3.10.1", True),
        ("etcd", "etcd Version: 3.5.21", False),
        ("kwok", "kwok version v0.8.0 go1.26.8 (linux/amd64)", True),
        ("kwok", "kwok version v0.5.2", False),
        ("coredns", "CoreDNS-1.14.7", True),
        ("coredns", "CoreDNS-1.9.3", False),
        ("gpu-device-plugin", "whatever", False),
    ],
)
def test_program_is_accepted_by_its_version_output(tmp_path: Path, name: str, output: str, is_accepted: bool) -> None:
    assert binaries.version_matches(name, str(program(tmp_path, name, output))) is is_accepted


def test_kubebuilder_assets_come_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assets = program(tmp_path / "assets", "etcd", "etcd Version: 3.6.9")
    on_path = program(tmp_path / "path", "etcd", "etcd Version: 3.6.8")
    monkeypatch.setenv("PATH", f"{on_path.parent}:/usr/bin:/bin")
    assert binaries.find_existing("etcd") == on_path
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets.parent))
    assert binaries.find_existing("etcd") == assets


def test_assets_of_another_version_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = program(tmp_path / "assets", "etcd", "etcd Version: 3.4.23")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(old.parent))
    assert binaries.find_existing("etcd") is None


def test_another_build_recipe_has_another_cache_path() -> None:
    first = binaries.GoModule("kwok", "kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"})
    second = binaries.GoModule("kwok", "kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, ldflags="-s")
    assert first.install_dir != second.install_dir


def test_missing_module_proxy_is_reported_and_leaves_no_partial_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go = program(tmp_path / "go", "go", "go version go1.26.0 linux/amd64")
    go.write_text(
        '#!/bin/sh\n[ "$1" = version ] && echo "go version go1.26.0 linux/amd64" && exit\n'
        'echo "k8s.io/api@v0.36.4: module lookup disabled by GOPROXY=off" >&2\nexit 1\n'
    )
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    with pytest.raises(MissingRequirement) as raised:
        binaries.resolve(["kwok"])
    assert "module lookup disabled" in str(raised.value)
    assert "check that a Go module proxy is reachable" in str(raised.value)
    assert "KUBEBUILDER_ASSETS" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"] == []
