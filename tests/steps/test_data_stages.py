"""The stages from sources to pseudo labels, on real files good and bad."""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from hapvr.augment.policy import ViewDrawer
from hapvr.augment.views import plan_cached_views
from hapvr.data.features import LABELS_STAGE, VIEWS_STAGE, ViewFile
from hapvr.data.frames import FrameFile
from hapvr.data.manifest import read_manifest
from hapvr.steps import frames
from hapvr.steps.frames import make_frames, open_frames
from hapvr.steps.project import Project
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from hapvr.video.pool import SampledVideo
from tests.conftest import write_clip
from tests.steps.data_projects import folder_settings, open_project
from tests.video.conftest import write_film


def training_shards(project: Project) -> list[str]:
    """Keys of the training shards."""
    manifest = read_manifest(project.root)
    return manifest.filter(pl.col("split") == "train")["shard"].unique().sort().to_list()


def test_views_and_embeddings_are_of_the_same_pixels_and_can_be_made_again(
    small_project: Project,
) -> None:
    """Rows of both stages agree, and drawing a video's views again gives the same bytes."""
    key = training_shards(small_project)[0]
    views = ViewFile(small_project.shard(VIEWS_STAGE, key))
    assert views.hosts == ViewFile(small_project.shard(LABELS_STAGE, key)).hosts
    file = FrameFile(small_project.shard("frames", key))
    video_id = views.video_ids[0]
    plans = plan_cached_views(file.video_ids, small_project.config.views)[video_id]
    size_px = small_project.config.backbone.crop_px
    config = small_project.config.views
    drawers = [
        ViewDrawer(lambda one: file.read(one).jpegs, config=config, size_px=size_px)
        for _ in range(2)
    ]
    first = [drawers[0].draw(plan) for plan in plans]
    second = [drawers[1].draw(plan) for plan in plans]
    assert [plan.host_id for plan in plans] == views.hosts[video_id]
    assert [plan.strength for plan in plans] == ["weak", "strong", "strong"]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert views.read(video_id).shape == (3, 4, 9, 32)


def test_files_whose_names_are_not_utf8_are_videos_as_well(tmp_path: Path) -> None:
    """Frames as under another name; a broken one fails with its reason; nothing is done twice."""
    plain = write_clip(tmp_path / "in" / "plain.mp4", seed=0, seconds=2)
    try:
        shutil.copy(plain, os.fsdecode(os.fsencode(plain.parent) + b"/caf\xe9.mp4"))
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")

    Path(os.fsdecode(os.fsencode(plain.parent) + b"/\xff\n.mp4")).write_text("no video")
    project = open_project(
        tmp_path, folder_settings(plain.parent, tmp_path / "data", shard_videos=100)
    )
    make_manifest(project)
    make_videos(project, "in-00000")
    make_frames(project, "in-00000")
    rows = project.shard("videos", "in-00000").index().select("video_id", "reason").rows()
    assert rows == [
        ("in/\\xff\\x0a.mp4", "not_video"),
        ("in/caf\\xe9.mp4", ""),
        ("in/plain.mp4", ""),
    ]
    reader = open_frames(project, "in-00000")
    assert reader.read("in/caf\\xe9.mp4").jpegs == reader.read("in/plain.mp4").jpegs
    assert not make_videos(project, "in-00000").done
    assert not make_frames(project, "in-00000").done


@pytest.fixture(scope="module")
def looked_into(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of one clip that was looked into."""
    folder = tmp_path_factory.mktemp("looked into")
    write_clip(folder / "in" / "clip.mp4", seed=0, seconds=1)
    project = open_project(folder, folder_settings(folder / "in", folder / "data"))
    make_manifest(project)
    make_videos(project, "in-00000")
    return project


@pytest.fixture
def without_frames(looked_into: Project) -> Project:
    """That project, before its clip was sampled."""
    shutil.rmtree(looked_into.root.local_path("frames"), ignore_errors=True)
    return looked_into


@pytest.mark.parametrize(
    ("reason", "limits", "tried"),
    [
        ("timeout", {}, True),
        ("crashed", {}, True),
        ("changed_file", {}, True),
        ("decode_error", {}, True),
        ("unsupported_codec", {}, False),
        ("too_large", {}, False),
        ("unsupported_codec", {"timeout_s": 61.0}, True),
        ("too_large", {"max_memory_bytes": 2**31}, True),
    ],
)
def test_a_failure_does_not_stay_after_its_cause(
    without_frames: Project,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    limits: Any,
    tried: bool,
) -> None:
    """What another try can change is tried again when asked for, once; the row says by which
    command."""
    project = without_frames

    def failing(items: Any, **options: Any) -> Iterator[SampledVideo]:
        for video_id, path in items:
            yield SampledVideo(video_id, path, reason=reason, message="video: failed")

    with monkeypatch.context() as patch:
        patch.setattr(frames, "sample_videos", failing)
        assert make_frames(project, "in-00000").num_failed == 1

    (row,) = project.shard("frames", "in-00000").rows()
    assert "`hapvr sample --retry-failed`" in row["message"]

    if limits:
        sampling = project.config.sampling.model_copy(update=limits)
        config = project.config.model_copy(update={"sampling": sampling})
        project = dataclasses.replace(project, config=config)

    assert make_frames(project, "in-00000").num_failed == 1
    assert make_frames(project, "in-00000", retry_changeable=True).num_ok == tried
    assert make_frames(project, "in-00000", retry_failed=True).num_ok == 1
    assert not make_frames(project, "in-00000", retry_failed=True, retry_changeable=True).done


def test_what_is_partly_readable_is_told_from_what_is_whole(tmp_path: Path) -> None:
    """A broken clock is noted, and its video is whole; one that broke off is partial."""
    folder = tmp_path / "in"
    folder.mkdir()
    film = write_film(tmp_path / "film.ts", [number / 10 for number in range(40)]).read_bytes()
    (folder / "again.ts").write_bytes(film + film)
    whole = write_clip(tmp_path / "whole.mkv", seed=0, seconds=8).read_bytes()
    (folder / "cut.mkv").write_bytes(whole[: len(whole) // 2])
    (folder / "whole.mkv").write_bytes(whole)
    project = open_project(tmp_path, folder_settings(folder, tmp_path / "data"))
    make_manifest(project)
    make_videos(project, "in-00000")
    make_frames(project, "in-00000")
    rows = {row["video_id"]: row for row in project.shard("frames", "in-00000").rows()}
    assert {name: row["is_partial"] for name, row in rows.items()} == {
        "in/again.ts": False,
        "in/cut.mkv": True,
        "in/whole.mkv": False,
    }
    assert "clock jumps" in rows["in/again.ts"]["message"]
    assert rows["in/whole.mkv"]["message"] == ""
