"""A run reads a file once for its digest, and knows when it is another."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hapvr.steps import fetching, file_digests, frames
from hapvr.steps.file_digests import FileDigests
from hapvr.steps.frames import make_frames
from hapvr.steps.project import Project
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from hapvr.video.pool import SampledVideo, sample_videos
from tests.conftest import write_clip
from tests.steps.data_projects import folder_settings, open_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Two clips in the manifest, which count as settled a tenth of a second after they were
    written."""
    monkeypatch.setattr(file_digests, "SETTLED_S", 0.1)
    for number in range(2):
        write_clip(tmp_path / "in" / f"{number}.mp4", seed=number, seconds=1)
    project = open_project(tmp_path, folder_settings(tmp_path / "in", tmp_path / "data"))
    make_manifest(project)
    time.sleep(0.2)
    return project


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the workers read each file for its digest."""
    counts = Counter[str]()

    def sampling(
        items: Iterable[tuple[str, Path]], *, digest: bool = True, **options: Any
    ) -> Iterator[SampledVideo]:
        def counted() -> Iterator[tuple[str, Path]]:
            for video_id, path in items:
                counts[path.name] += digest
                yield video_id, path

        return sample_videos(counted(), digest=digest, **options)

    for module in (fetching, frames):
        monkeypatch.setattr(module, "sample_videos", sampling)
    return counts


def test_videos_and_frames_of_a_run_read_a_file_once_for_its_digest(
    project: Project, hashed: Counter[str]
) -> None:
    make_videos(project, "in-00000")
    assert make_frames(project, "in-00000").num_ok == 2
    assert hashed == {"0.mp4": 1, "1.mp4": 1}


def test_frames_notice_a_file_that_changed_under_the_same_size_and_time(
    project: Project, hashed: Counter[str]
) -> None:
    make_videos(project, "in-00000")
    clip = project.folder / "in" / "0.mp4"
    times = clip.stat()
    content = bytearray(clip.read_bytes())
    content[-1] ^= 1
    clip.write_bytes(content)
    os.utime(clip, ns=(times.st_atime_ns, times.st_mtime_ns))
    make_frames(project, "in-00000")
    rows = {row["video_id"]: row["reason"] for row in project.shard("frames", "in-00000").rows()}
    assert rows == {"in/0.mp4": "changed_file", "in/1.mp4": ""}


def test_frames_notice_a_file_that_changes_while_it_is_decoded(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_videos(project, "in-00000")

    def touching(items: Any, **options: Any) -> Iterator[SampledVideo]:
        for video in sample_videos(items, **options):
            if video.path.name == "0.mp4":
                video.path.touch()
            yield video

    monkeypatch.setattr(frames, "sample_videos", touching)
    make_frames(project, "in-00000")
    rows = {row["video_id"]: row["reason"] for row in project.shard("frames", "in-00000").rows()}
    assert rows == {"in/0.mp4": "changed_file", "in/1.mp4": ""}


def test_a_digest_is_not_kept_of_a_file_that_was_just_written(tmp_path: Path) -> None:
    """It may be written to again within one step of its clock."""
    file = tmp_path / "a"
    file.write_text("a")
    digests = FileDigests()
    digests.watch(file)
    digests.record(file, "1")
    assert digests.of(file) == ""
