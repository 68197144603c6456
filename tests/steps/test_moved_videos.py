"""Videos that move, or are away with their drive."""

import shutil
from pathlib import Path

import pytest

from hapvr.care.health import health
from hapvr.chain import CHAIN
from hapvr.chain.step import shards_of
from hapvr.search.collection import VideoMetadata
from hapvr.search.duplicates import DuplicatePair
from hapvr.steps.duplicate_pairs import duplicate_pairs
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.sources import snapshot_sources
from tests.conftest import write_settings
from tests.scorer.bundles import write_scenes
from tests.steps.data_projects import digests
from tests.steps.search_projects import copied, register_bundle

pytestmark = pytest.mark.slow
MOVED = "in/short.mp4"


@pytest.fixture
def project(searchable: Path, tmp_path: Path) -> Project:
    """A collection with an index and a champion."""
    project = copied(searchable, tmp_path, videos=True)
    register_bundle(project, tmp_path / "bundle-0")
    return project


def run(project: Project, *steps: str) -> None:
    for step in (CHAIN[name] for name in steps):
        for key in shards_of(project, step):
            step.run(project, key)


def test_moved_files_and_drives_that_are_away_decode_nothing(project: Project) -> None:
    """A renamed file keeps its id, pairs and features; another file at its old place is a new
    video. With the drive away all is found as before; when it is back at another place, the paths
    follow."""
    steps = (
        "video_manifest",
        "videos",
        "frames",
        "features",
        "frame_descriptors",
        "search_index",
        "duplicate_pairs",
    )
    run(project, *steps)
    videos = project.folder / "videos"
    pairs = found_pairs(project)
    frames = digests(project.root.local_path("frames"))
    (videos / "short.mp4").rename(videos / "trips" / "renamed.mp4")
    run(project, *steps)
    assert digests(project.root.local_path("frames")) == frames
    assert found_pairs(project) == pairs
    assert metadata_of(project, MOVED).path == videos / "trips" / "renamed.mp4"

    write_scenes(videos / "short.mp4", list(range(800, 806)))
    run(project, *steps)
    assert f"{MOVED}~2" in Searcher.open(project).collection.video_ids()
    assert found_pairs(project) == pairs

    files = digests(project.root.local_path("features"))
    seen = snapshot_sources(project, settle_s=0)
    away = videos.rename(project.folder / "drive")
    with pytest.warns(UserWarning, match="source in: none of its files is there"):
        run(project, *steps)
    assert snapshot_sources(project, settle_s=0) != seen
    assert digests(project.root.local_path("features")) == files
    assert found_pairs(project) == pairs
    (concern,) = (one for one in health(project).concerns if one.event == "source_lost")
    assert "the files of 10 of 10 videos are not there" in concern.text

    settings = project.config.model_dump(mode="json")
    settings["sources"][0]["path"] = str(away)
    back = Project.open(
        write_settings(project.folder / "config.yaml", settings), folder=project.folder
    )
    run(back, *steps)
    assert metadata_of(back, MOVED).path == away / "trips" / "renamed.mp4"
    assert metadata_of(back, f"{MOVED}~2").path == away / "short.mp4"
    assert digests(project.root.local_path("features")) == files

    # and where the files of the old place are still there
    settings["sources"][0]["path"] = str(shutil.copytree(away, project.folder / "copy"))
    back = Project.open(
        write_settings(project.folder / "config.yaml", settings), folder=project.folder
    )
    run(back, *steps)
    assert metadata_of(back, f"{MOVED}~2").path == project.folder / "copy" / "short.mp4"
    assert digests(project.root.local_path("features")) == files
    assert health(back).files == {"in": (0, 10)}


def metadata_of(project: Project, video_id: str) -> VideoMetadata:
    return Searcher.open(project).collection.metadata.of(video_id)


def found_pairs(project: Project) -> list[DuplicatePair]:
    return duplicate_pairs(project, Searcher.open(project), min_probability=0.5)
