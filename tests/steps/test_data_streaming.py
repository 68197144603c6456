"""Frames that are never stored: every stage decodes for itself and ends in the same bytes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hapvr.data.frames import FrameFile, contact_sheet, frames_digest
from hapvr.errors import DataError
from hapvr.steps.frames import make_frames, open_frames
from hapvr.steps.manifest import make_manifest
from hapvr.steps.project import Project
from hapvr.steps.videos import make_videos
from hapvr.upkeep import verify_root
from tests.conftest import write_clip
from tests.steps.data_projects import folder_settings, open_project

KEY = "in-00000"


def sampled(folder: Path, clips: Path, *, store_frames: bool) -> Project:
    """A project whose frames are made."""
    settings = folder_settings(clips, folder / "data", shard_videos=100)
    settings["sampling"] |= {"store_frames": store_frames, "workers": 1}
    settings["views"] |= {"augment": {"video_in_video_probability": 0.7}}
    project = open_project(folder, settings)
    make_manifest(project)
    make_videos(project, KEY)
    make_frames(project, KEY)
    return project


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Four clips and a file that is none."""
    for number in range(4):
        write_clip(tmp_path / "in" / f"{number}.mp4", seed=number, seconds=1 + number)
    (tmp_path / "in" / "2b.mp4").write_text("no video")
    return tmp_path / "in"


def test_unstored_frames_are_those_that_are_stored(clips: Path, tmp_path: Path) -> None:
    """Same index, same frames in any order of reading, no file; and a file that changed meanwhile is refused."""
    stored = sampled(tmp_path / "1", clips, store_frames=True)
    streamed = sampled(tmp_path / "2", clips, store_frames=False)
    first, second = (project.shard("frames", KEY) for project in (stored, streamed))
    assert second.index().equals(first.index())
    assert frames_digest(first) == frames_digest(second)
    assert not streamed.root.exists(second.data_name)
    assert [check.state for check in verify_root(streamed.root, kinds=("frames",))] == ["ok"]
    with pytest.raises(DataError, match=r"set sampling\.store_frames to true"):
        FrameFile(second)
    file = FrameFile(first)
    with open_frames(streamed, KEY) as reader:
        assert reader.video_ids == file.video_ids
        for number in (0, 1, 3, 1, 2, 2, 3, 0):
            assert reader.read(f"in/{number}.mp4") == file.read(f"in/{number}.mp4")
        assert contact_sheet(reader).tobytes() == contact_sheet(file).tobytes()
    write_clip(clips / "1.mp4", seed=77, seconds=2)
    with open_frames(streamed, KEY) as reader:
        reader.read("in/0.mp4")
        with pytest.raises(DataError, match=r"in/1.mp4 does not decode as it did .* run the steps videos and frames"):
            reader.read("in/1.mp4")


def test_files_whose_names_are_not_utf8_are_videos_as_well(tmp_path: Path) -> None:
    """Frames as under another name; a broken one fails with its reason; nothing is done twice."""
    plain = write_clip(tmp_path / "in" / "plain.mp4", seed=0, seconds=2)
    try:
        shutil.copy(plain, os.fsdecode(os.fsencode(plain.parent) + b"/caf\xe9.mp4"))
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    Path(os.fsdecode(os.fsencode(plain.parent) + b"/\xff\n.mp4")).write_text("no video")
    project = sampled(tmp_path / "1", plain.parent, store_frames=False)
    rows = project.shard("videos", KEY).index().select("video_id", "status", "reason").rows()
    assert rows == [
        ("in/\\xff\\n.mp4", "not_video", "not_video"),
        ("in/caf\\xe9.mp4", "ok", ""),
        ("in/plain.mp4", "ok", ""),
    ]
    with open_frames(project, KEY) as reader:
        assert reader.read("in/caf\\xe9.mp4").jpegs == reader.read("in/plain.mp4").jpegs
    assert not make_videos(project, KEY).done
    assert not make_frames(project, KEY).done
