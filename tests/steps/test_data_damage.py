"""Damaged files: the stage that owns a file makes it anew, everybody else names it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hapvr.data.features import FeatureStore
from hapvr.data.frames import INDEX_COLUMNS
from hapvr.errors import DamagedError
from hapvr.steps.features import make_features
from hapvr.steps.frames import make_frames
from hapvr.steps.project import Project
from hapvr.steps.sources import make_manifest
from hapvr.steps.videos import make_videos
from hapvr.steps.views import make_views_and_labels
from hapvr.steps.whitening import make_whitening
from hapvr.upkeep import repair, verify_root
from tests.conftest import write_clip
from tests.steps.data_projects import digests, folder_settings, open_project

KEY = "in-00000"
STAGES: tuple[Callable[[Project], object], ...] = (
    lambda project: make_manifest(project),
    lambda project: make_videos(project, KEY),
    lambda project: make_frames(project, KEY),
    lambda project: make_whitening(project),
    lambda project: make_features(project, KEY),
    lambda project: make_views_and_labels(project, KEY),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A data root in which all data stages are finished."""
    folder = tmp_path_factory.mktemp("damage")
    for number in range(2):
        write_clip(folder / "in" / f"{number}.mp4", seed=number, seconds=2)
    project = open_project(folder, folder_settings(folder / "in", folder / "data"))
    for stage in STAGES:
        stage(project)
    return project


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """The same with a data root of its own, to be damaged."""
    assert finished.root.local is not None
    shutil.copytree(finished.root.local, tmp_path / "data")
    return open_project(tmp_path, folder_settings(finished.folder / "in", tmp_path / "data"))


def files(project: Project) -> list[Path]:
    """Every file that a stage wrote, relative to the data root."""
    root = Path(project.root.url)
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file() and ".locks" not in path.parts)


def test_verify_finds_what_stages_do_not_look_for_and_repairs_it(project: Project, finished: Project) -> None:
    """One flipped bit in the middle of each data file: `verify` names each file, and `repair` makes the bytes of before."""
    root = Path(project.root.url)
    assert {check.state for check in verify_root(project.root)} == {"ok"}
    damaged = [name for name in files(project) if name.name == "data.parquet"]
    for name in damaged:
        data = bytearray((root / name).read_bytes())
        data[len(data) // 2] ^= 1
        (root / name).write_bytes(data)
    checks = verify_root(project.root)
    assert sorted(check.kind for check in checks if check.state == "damaged") == sorted(
        name.parts[0] for name in damaged
    )
    repaired = repair(project, checks)
    assert sorted(check.kind for check in repaired if check.state == "repaired") == sorted(
        name.parts[0] for name in damaged
    )
    assert digests(root) == digests(Path(finished.root.url))
    assert {check.state for check in verify_root(project.root)} == {"ok"}


def test_damaged_rows_are_not_taken_over(project: Project) -> None:
    """A bit that flipped in stored features is not copied under a new digest when another video changes."""
    path = Path(project.root.url) / f"features/{KEY}/data.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)
    index = project.shard("features", KEY)
    frames = project.shard("frames", KEY)
    rows = frames.index().rows(named=True)
    rows[0] |= {"message": "changed"}
    provenance = frames.require({})
    frames.write_index(rows, provenance=provenance, fields=INDEX_COLUMNS)
    with pytest.warns(UserWarning, match="is damaged; all its rows are made again"):
        assert make_features(project, KEY).done
    assert project.root.sha256(index.data_name) == index.data_digest()
    path.write_bytes(data[:-100])
    with pytest.raises(DamagedError, match=rf"features/{KEY}/data\.parquet .* has \d+ bytes, \d+ were written"):
        FeatureStore(project.root, [KEY])
