"""A collection whose videos were sampled in different ways."""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hapvr.steps import frames
from hapvr.steps.frames import make_frames, open_frames
from hapvr.steps.project import Project
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from hapvr.video.pool import SampledVideo, sample_videos
from hapvr.video.settings import SamplingMode
from tests.conftest import write_clip
from tests.steps.data_projects import folder_settings, open_project
from tests.video.conftest import VideoWriter, write_film

KEY = "in-00000"


def in_mode(project: Project, mode: SamplingMode) -> Project:
    sampling = project.config.sampling.model_copy(update={"mode": mode})
    config = project.config.model_copy(update={"sampling": sampling})
    return dataclasses.replace(project, config=config)


def modes(project: Project) -> dict[str, str]:
    """How each video of the shard was sampled."""
    rows = project.shard("frames", KEY).rows()
    return {row["video_id"].removeprefix("in/"): row["sampled"] for row in rows}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A long film, a short one, and one that key frames do not suit, in mode `key_frames`."""
    folder = tmp_path / "in"
    folder.mkdir()
    write_film(folder / "long.mp4", [number / 5 for number in range(200)], group=20)
    write_clip(folder / "short.mp4", seed=0, seconds=2)
    VideoWriter(folder).numbered("film.gif", codec="gif", pixel_format="rgb8")
    key_frames_project = in_mode(
        open_project(tmp_path, folder_settings(folder, tmp_path / "data")), "key_frames"
    )
    make_manifest(key_frames_project)
    make_videos(key_frames_project, KEY)
    make_frames(key_frames_project, KEY)
    return key_frames_project


def test_each_video_says_how_it_was_sampled(project: Project) -> None:
    assert modes(project) == {
        "film.gif": "thorough",
        "long.mp4": "key_frames",
        "short.mp4": "thorough",
    }
    times_s = open_frames(project, KEY).read("in/long.mp4").timestamps_s
    assert times_s[:7] == pytest.approx([0, 4, 8, 12, 16, 20, 24])


def test_a_more_thorough_mode_decodes_only_what_was_sampled_hastily(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once."""
    decoded: list[str] = []

    def counted(items: Iterable[tuple[str, Path]], **options: Any) -> Iterator[SampledVideo]:
        pairs = list(items)
        decoded.extend(video_id.removeprefix("in/") for video_id, _ in pairs)
        return sample_videos(pairs, **options)

    monkeypatch.setattr(frames, "sample_videos", counted)
    assert make_frames(in_mode(project, "thorough"), KEY).done
    assert decoded == ["long.mp4"]
    assert set(modes(project).values()) == {"thorough"}
    assert not make_frames(in_mode(project, "thorough"), KEY).done


def test_a_hastier_mode_leaves_what_is_there(project: Project) -> None:
    """It holds for new videos alone."""
    make_frames(in_mode(project, "thorough"), KEY)
    assert not make_frames(in_mode(project, "key_frames"), KEY).done
    assert set(modes(project).values()) == {"thorough"}
