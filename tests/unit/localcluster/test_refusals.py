"""What is missing is said in one sentence with the remedy, before anything is started."""

import ipaddress
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from localcluster import apt_packages, cli, linux_namespaces, node
from localcluster.errors import Unmet
from localcluster.paths import require_disk


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 2 * 10**8))
    with pytest.raises(Unmet, match=r"building X needs 8 GB .* 0\.2 GB are free: free some, or point XDG_CACHE_HOME"):
        require_disk(tmp_path / "not" / "there" / "yet", 8, "building X")


def test_no_root_for_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(Unmet, match="a node needs root"):
        node.prepare()


def test_missing_packages_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(Unmet, match="run `sudo apt-get install some-package`"):
        apt_packages.require({"no-such-program": "some-package"})


def test_missing_packages_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(Unmet, match="has no apt-get: install them with its package manager"):
        apt_packages.require({"no-such-program": "some-package"})


def test_the_command_line_says_it_once_and_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert cli.main(["node"]) == 2
    said = capsys.readouterr().err.strip()
    assert said == "Cannot go on: a node needs root for its namespaces and mounts: run this with sudo."


def test_networks_in_use_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first = linux_namespaces.Network(0)
    monkeypatch.setattr(linux_namespaces, "_routes", lambda: [ipaddress.IPv4Network(first.services)])
    assert linux_namespaces.free_network() == linux_namespaces.Network(1)


def test_no_network_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux_namespaces, "_routes", lambda: [ipaddress.IPv4Network("10.0.0.0/8")])
    with pytest.raises(Unmet, match="stop a local cluster"):
        linux_namespaces.free_network()


def test_networks_do_not_overlap() -> None:
    networks = [linux_namespaces.Network(index) for index in linux_namespaces.NETWORKS]
    cidrs = [ipaddress.ip_network(c) for n in networks for c in (n.link, n.pods, n.services)]
    assert not any(a.overlaps(b) for i, a in enumerate(cidrs) for b in cidrs[i + 1 :])
