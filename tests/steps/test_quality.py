"""Findings on real shards: healthy ones, and ones with losses, duplicates, wrong values and changed
bytes."""

import shutil

import numpy as np
import pytest

from hapvr.data.features import STAGE, fields
from hapvr.data.shards import frame_columns, index_row
from hapvr.provenance import Provenance
from hapvr.steps.frames import make_frames
from hapvr.steps.project import Project
from hapvr.steps.quality import Finding, check_features, check_frames, check_videos
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from tests.conftest import small_settings, write_clip, write_settings


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    """Findings by the name of their check."""
    return {finding.name: finding for finding in findings}


@pytest.fixture(scope="module")
def inbox(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A folder source of four clips, a copy of one of them, and two files that are not videoss;
    ingested up to frames."""
    folder = tmp_path_factory.mktemp("inbox")
    videos = folder / "videos"
    for seed in range(4):
        write_clip(videos / f"{seed}.mp4", seed=seed)
    shutil.copy(videos / "0.mp4", videos / "0 again.mp4")
    for name in ("text.mp4", "more text.mp4"):
        (videos / name).write_text("this is no video")
    settings = small_settings(videos, folder / "data")
    settings["sources"] = [{"kind": "folder", "name": "inbox", "path": str(videos)}]
    settings["shard_videos"] = 50
    del settings["evaluation"]
    project = Project.open(write_settings(folder / "config.yaml", settings), folder=folder)
    make_manifest(project)
    make_videos(project, "inbox-00000")
    make_frames(project, "inbox-00000")
    return project


def test_losses_and_duplicates_of_videos_are_counted_and_named(inbox: Project) -> None:
    """Two of seven files are no videos: over the limit of 20 %; two of five usable ones are the
    same: over 10 %."""
    findings = by_name(check_videos(inbox, "inbox-00000"))
    assert findings["unavailable_videos"].passed
    failed = findings["failed_videos"]
    copies = findings["duplicate_videos"]
    assert not failed.passed
    assert failed.severity == "warn"
    assert failed.values["videos"] == 2
    assert failed.values["examples"] == ["inbox/more text.mp4", "inbox/text.mp4"]
    assert failed.hint
    assert not copies.passed
    assert copies.values["examples"] == ["inbox/0 again.mp4", "inbox/0.mp4"]
    assert copies.values["rate"] == pytest.approx(2 / 5)


def test_frames_fit_the_durations_or_are_found(inbox: Project) -> None:
    """Six-second clips at one frame per second give six rows each; for four frames per second they
    are far too few."""
    findings = by_name(check_frames(inbox, "inbox-00000"))
    assert all(
        findings[name].passed for name in ("undecodable_videos", "frame_rate", "stored_bytes")
    )
    assert findings["frame_rate"].values["of"] == 5
    faster = Project.open(
        inbox.folder / "config.yaml", folder=inbox.folder, overrides={"sampling.fps": 4.0}
    )
    rate = by_name(check_frames(faster, "inbox-00000"))["frame_rate"]
    assert not rate.passed
    assert rate.values["videos"] == 5


def test_wrong_values_are_errors_that_name_their_videos(inbox: Project) -> None:
    """NaN, a zero vector and a norm of 2: each video is named by the check that it fails."""
    unit = np.full((2, 9, 16), 0.25, np.float16)
    broken = {"nan": unit.copy(), "zero": unit.copy(), "long": 2 * unit, "fine": unit}
    broken["nan"][1, 3, 5] = np.nan
    broken["zero"][0, 8] = 0
    shard = inbox.shard(STAGE, "made-00000")
    with shard.write_data(fields(num_regions=9, dims=16)) as write:
        for name, regions in broken.items():
            write(frame_columns(name, [0.0, 1.0], [0, 0], regions))

    shard.write_index([index_row(name, 2) for name in broken], provenance=Provenance(STAGE, {}))
    findings = by_name(check_features(inbox, "made-00000"))
    assert findings["feature_values"].values["examples"] == ["nan", "zero"]
    assert findings["feature_values"].severity == "error"
    assert findings["feature_norms"].values["examples"] == ["long"]
    assert findings["feature_norms"].values["largest_error"] == pytest.approx(1.0, abs=1e-3)
    assert findings["stored_bytes"].passed
