"""A run goes by one look at the sources and one reading of the manifest."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hapvr.data import manifest
from hapvr.steps.video_manifest import make_manifest
from hapvr.video import folders, sources
from tests.conftest import write_clip
from tests.steps.data_projects import folder_settings, open_project


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each folder is listed, and each shard of the manifest read."""
    counts = Counter[str]()
    list_folder = sources.list_folder
    read_shard = manifest.read_manifest_shard

    def listing(root: Path, **options: Any) -> folders.FolderListing:
        counts[root.name] += 1
        return list_folder(root, **options)

    def reading(root: Any, shard: str) -> list[manifest.ManifestRow]:
        counts[shard] += 1
        return read_shard(root, shard)

    monkeypatch.setattr(sources, "list_folder", listing)
    for module in ("source_listing", "sources"):
        monkeypatch.setattr(f"hapvr.steps.{module}.read_manifest_shard", reading)
    return counts


@pytest.mark.parametrize(
    "source",
    [
        pytest.param({"kind": "folder"}, id="folder"),
        pytest.param({"kind": "own_videos"}, id="own videos", marks=pytest.mark.slow),
    ],
)
def test_a_manifest_takes_one_look_at_each_source(
    tmp_path: Path, looks: Counter[str], source: dict[str, str]
) -> None:
    """Also where a file has moved and another is new."""
    folder = tmp_path / "clips"
    for number in range(5):
        write_clip(folder / f"{number}.mp4", seed=number, seconds=1)
    settings = folder_settings(folder, tmp_path / "data")
    settings["sources"] = [{"name": "in", "path": str(folder), **source}]
    project = open_project(tmp_path, settings)
    shards = make_manifest(project).shards
    assert looks.pop("clips") == 1

    looks.clear()
    (folder / "0.mp4").rename(folder / "moved.mp4")
    write_clip(folder / "new.mp4", seed=9, seconds=1)
    assert make_manifest(project).new_shards
    assert looks["clips"] == 1
    assert {looks[shard] for shard in shards} == {1}
