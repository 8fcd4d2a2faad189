"""The cache of container images keeps only the newest product images."""

import os
from pathlib import Path

import pytest

from localcluster import images


def test_old_product_images_are_removed_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "gpu-runtime" / "images"
    folder.mkdir(parents=True)
    archives = [folder / f"gpu-runtime-{number}a.oci.tar" for number in range(images.MAX_CACHED_PRODUCT_IMAGES + 2)]
    others = [folder / "debian-1a.tar", folder / "gpu-runtime-1a.tar"]
    for age, path in enumerate([*others, *archives]):
        path.touch()
        os.utime(path, (age, age))

    images._evict_oldest("gpu-runtime-*.oci.tar")

    assert sorted(folder.iterdir()) == sorted([*others, *archives[2:]])
