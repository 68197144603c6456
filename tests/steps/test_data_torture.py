"""A folder of damaged, strange and hostile files through manifest, videos, frames and features."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest
import torch

from hapvr.data.features import FeatureStore
from hapvr.data.manifest import read_manifest
from hapvr.steps.features import make_features
from hapvr.steps.frames import make_frames
from hapvr.steps.manifest import make_manifest
from hapvr.steps.project import Project
from hapvr.steps.videos import make_videos
from hapvr.steps.whitening import make_whitening
from hapvr.video.sources import VIDEO_SUFFIXES
from tests.steps.data_projects import folder_settings, open_project
from tests.steps.torture import make_torture

pytestmark = pytest.mark.slow

KEY = "in-00000"
REASONS = {
    "",
    "not_video",
    "no_video_stream",
    "no_frames",
    "decode_error",
    "too_large",
    "empty_file",
    "missing_file",
} | {"changed_file"}


def extract(project: Project) -> FeatureStore:
    """The stages of one shard; a whitening that is there is kept."""
    make_videos(project, KEY)
    make_frames(project, KEY)
    if not project.root.exists("whitening/whitening.json"):
        make_whitening(project, [KEY])
    make_features(project, KEY)
    return FeatureStore(project.root, [KEY])


def test_a_folder_of_horrors(tmp_path: Path) -> None:
    """No crash, no hang, no video lost; good files have the features that they have alone."""
    folder = tmp_path / "in"
    good = make_torture(folder, rng=random.Random(0))
    wanted = {
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.suffix.lower() in VIDEO_SUFFIXES and not path.is_dir() and path.name != "outside.mp4"
    }
    assert len(wanted) >= 70
    settings = folder_settings(folder, tmp_path / "data", shard_videos=1000)
    settings["sampling"] |= {"timeout_s": 60, "max_frames": 6, "max_memory_bytes": 3 * 2**29}
    project = open_project(tmp_path, settings)
    started = time.monotonic()
    make_manifest(project)
    store = extract(project)
    assert time.monotonic() - started < 60 * len(wanted)

    manifest = read_manifest(project.root)
    assert len(manifest) == len(wanted)
    for stage in ("videos", "frames", "features"):
        index = project.shard(stage, KEY).index()
        assert sorted(index["video_id"]) == sorted(manifest["video_id"])
        assert set(index["reason"]) <= REASONS
    index = project.shard("features", KEY).index()
    failed = set(index.filter(index["status"] != "ok")["video_id"])
    assert 30 < len(failed) < len(wanted) - 30
    assert {"in/pipe.mp4", "in/self.mp4", "in/dangling.mp4", "in/text.mp4", "in/playlist.mp4", "in/zero.mp4"} <= failed
    assert {
        "in/8k.mp4",
        "in/1x1.mkv",
        "in/240fps.mp4",
        "in/slow.mp4",
        "in/endless.mkv",
        "in/single.mp4",
    } <= store.available()
    assert "in/two\\nlines\\x1b[31m.mp4" in store.available()
    assert not [path for path in [*tmp_path.rglob("pwned"), Path("pwned")] if path.exists()]

    alone = tmp_path / "alone"
    alone.mkdir()
    for name in good:
        shutil.copy(folder / name, alone / name)
    shutil.copytree(tmp_path / "data/whitening", tmp_path / "other/whitening")
    settings["sources"][0]["path"], settings["data_root"] = str(alone), str(tmp_path / "other")
    other = open_project(tmp_path / "c", settings)
    make_manifest(other)
    expected = dict(extract(other).read([f"in/{name}" for name in good]))
    found = dict(store.read(list(expected)))
    assert len(expected) == len(good)
    for video_id, features in expected.items():
        assert torch.equal(found[video_id], features), video_id
