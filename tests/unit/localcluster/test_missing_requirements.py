"""A missing requirement is reported with its remedy before any process is started."""

import ipaddress
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from localcluster import apt_packages, cli, linux_namespaces, node
from localcluster.errors import MissingRequirement
from localcluster.paths import require_free_disk


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


def test_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(10**9, 10**9, 2 * 10**8))
    with pytest.raises(
        MissingRequirement, match=r"building X needs 8 GB .* 0\.2 GB are free: delete files, or set XDG_CACHE_HOME"
    ):
        require_free_disk(tmp_path / "not" / "there" / "yet", 8, "building X")


def test_node_without_root_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(MissingRequirement, match="a node needs root"):
        node.prepare()


def test_missing_packages_without_root_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(MissingRequirement, match="Run `sudo apt-get install some-package`"):
        apt_packages.install_missing({"no-such-program": "some-package"})


def test_missing_packages_on_another_distribution_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(MissingRequirement, match="apt-get is not available: install them with the package manager"):
        apt_packages.install_missing({"no-such-program": "some-package"})


def test_missing_requirement_is_printed_once_with_exit_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert cli.main(["node"]) == 2
    printed = capsys.readouterr().err.strip()
    assert printed == "Cannot continue: a node needs root for its namespaces and mounts: run the command with sudo."


def test_networks_in_use_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    first = linux_namespaces.NodeNetwork(0)
    monkeypatch.setattr(linux_namespaces, "_used_networks", lambda: [ipaddress.IPv4Network(first.service_cidr)])
    assert linux_namespaces.find_free_network() == linux_namespaces.NodeNetwork(1)


def test_exhausted_networks_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux_namespaces, "_used_networks", lambda: [ipaddress.IPv4Network("10.0.0.0/8")])
    with pytest.raises(MissingRequirement, match="stop a local cluster"):
        linux_namespaces.find_free_network()


def test_networks_do_not_overlap() -> None:
    networks = [linux_namespaces.NodeNetwork(index) for index in linux_namespaces.NETWORK_INDEXES]
    cidrs = [ipaddress.ip_network(c) for n in networks for c in (n.link_cidr, n.pod_cidr, n.service_cidr)]
    assert not any(a.overlaps(b) for i, a in enumerate(cidrs) for b in cidrs[i + 1 :])
