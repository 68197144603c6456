"""What changes between two runs of the stages: clips, folders that go and come, shards that are
lost."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hapvr.care.forget import forget, plan_forgetting
from hapvr.errors import DataError
from hapvr.steps import fetching
from hapvr.steps.frames import make_frames
from hapvr.steps.project import Project
from hapvr.steps.source_listing import is_away
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from hapvr.video.pool import SampledVideo, sample_videos
from tests.conftest import write_clip
from tests.steps.data_projects import folder_settings, open_project

NUM_PAIRS = 5
"""As many as tests change."""


@dataclass(frozen=True)
class Pair:
    """Two clips that are a shard of their own."""

    project: Project
    key: str
    clips: tuple[Path, Path]

    def sample_again(self) -> int:
        """Make the frames of the shard as if they were lost; returns how many clips have some."""
        self.project.root.delete(f"frames/{self.key}/index.parquet")
        return make_frames(self.project, self.key).num_ok

    def frames_of(self, clip: Path) -> dict[str, Any]:
        """The row of a clip among the frames."""
        rows = self.project.shard("frames", self.key).rows()
        return next(row for row in rows if row["video_id"] == f"in/{clip.name}")


@pytest.fixture(scope="module")
def unused_pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    """A project whose shards have two clips each; a test takes one of them."""
    folder = tmp_path_factory.mktemp("pairs")
    clips = [
        write_clip(folder / "in" / f"{number}.mp4", seed=number, seconds=0.5)
        for number in range(2 * NUM_PAIRS)
    ]
    settings = folder_settings(folder / "in", folder / "data", shard_videos=2)
    project = open_project(folder, settings)
    shards = make_manifest(project).shards
    clips_by_shard = zip(clips[::2], clips[1::2], strict=True)
    return [Pair(project, *parts) for parts in zip(shards, clips_by_shard, strict=True)]


@pytest.fixture
def pair(unused_pairs: list[Pair]) -> Pair:
    """Two clips that were looked into and sampled."""
    pair = unused_pairs.pop()
    make_videos(pair.project, pair.key)
    make_frames(pair.project, pair.key)
    return pair


def test_a_touched_clip_is_looked_into_and_not_sampled_again(pair: Pair) -> None:
    pair.clips[0].touch()
    assert make_videos(pair.project, pair.key).done
    assert not make_frames(pair.project, pair.key).done


def replace_secretly(clip: Path) -> None:
    """Write another clip in the place of this one, with the time of this one."""
    times = clip.stat()
    write_clip(clip, seed=90, seconds=0.5)
    os.utime(clip, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_clip_of_other_bytes_is_not_sampled_before_it_was_looked_into(pair: Pair) -> None:
    """Only its own row says so, and how to go on."""
    first, second = pair.clips
    replace_secretly(first)
    assert pair.sample_again() == 1
    assert pair.frames_of(first)["reason"] == "changed_file"
    assert "`hapvr sample --retry-failed`" in pair.frames_of(first)["message"]
    assert pair.frames_of(second)["reason"] == ""


def test_a_clip_of_other_bytes_is_sampled_once_it_was_looked_into(pair: Pair) -> None:
    replace_secretly(pair.clips[0])
    pair.sample_again()
    pair.clips[0].touch()
    make_videos(pair.project, pair.key)
    assert make_frames(pair.project, pair.key).num_ok == 2


def test_a_clip_that_was_away_when_its_shard_was_sampled_is_sampled_later(
    pair: Pair, tmp_path: Path
) -> None:
    """Nobody needs to ask for it."""
    clip = pair.clips[1]
    away = clip.rename(tmp_path / "away.mp4")
    assert pair.sample_again() == 1
    away.rename(clip)
    assert make_frames(pair.project, pair.key).num_ok == 2


def test_a_clip_that_drops_out_while_it_is_looked_into_is_looked_into_later(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = pair.clips[1]
    away = tmp_path / "away.mp4"

    def dropping_out(*args: Any, **options: Any) -> Iterator[SampledVideo]:
        clip.rename(away)
        yield from sample_videos(*args, **options)

    clip.touch()
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "sample_videos", dropping_out)
        assert make_videos(pair.project, pair.key).num_ok == 1

    away.rename(clip)
    assert make_videos(pair.project, pair.key).num_ok == 2


@pytest.fixture
def two_shards(tmp_path: Path) -> Project:
    """A project with a manifest of two clips in `in`, a shard each, before anything else was
    made."""
    folder = tmp_path / "in"
    for number in range(2):
        write_clip(folder / f"{number}.mp4", seed=number, seconds=0.5)
    settings = folder_settings(folder, tmp_path / "data", shard_videos=1)
    project = open_project(tmp_path, settings)
    assert make_manifest(project).shards == ("in-00000", "in-00001")
    return project


def test_a_later_clip_gets_a_shard_of_its_own(two_shards: Project, tmp_path: Path) -> None:
    before = two_shards.root.sha256("manifest/in-00000/rows.parquet")
    write_clip(tmp_path / "in" / "0 earlier in the alphabet.mp4", seed=9, seconds=0.5)
    assert make_manifest(two_shards).new_shards == ("in-00002",)
    assert two_shards.root.sha256("manifest/in-00000/rows.parquet") == before


def lose(project: Project, key: str) -> None:
    """Remove a shard of the manifest."""
    shutil.rmtree(project.root.local_path(f"manifest/{key}"))


def test_the_number_of_a_lost_shard_is_not_given_to_another(two_shards: Project) -> None:
    """Others may have named it."""
    lose(two_shards, "in-00000")
    assert make_manifest(two_shards).new_shards == ("in-00002",)


def test_a_manifest_without_a_shard_that_has_videos_is_not_written_over(
    two_shards: Project,
) -> None:
    make_videos(two_shards, "in-00001")
    lose(two_shards, "in-00001")
    with pytest.raises(DataError, match="in-00001 is lost; restore it"):
        make_manifest(two_shards)


@pytest.fixture
def looked_into(two_shards: Project) -> Project:
    """That project, with its first shard looked into."""
    make_videos(two_shards, "in-00000")
    return two_shards


def test_a_shard_whose_folder_is_away_keeps_what_is_known_of_its_videos(
    looked_into: Project, tmp_path: Path
) -> None:
    (tmp_path / "in").rename(tmp_path / "away")
    assert not make_videos(looked_into, "in-00000").done


def test_a_shard_whose_folder_is_away_is_sampled_when_it_is_back(
    looked_into: Project, tmp_path: Path
) -> None:
    away = (tmp_path / "in").rename(tmp_path / "away")
    with pytest.raises(DataError, match="connect their drive"):
        make_frames(looked_into, "in-00000")
    away.rename(tmp_path / "in")
    assert make_frames(looked_into, "in-00000").num_ok == 1


@pytest.fixture
def two_folders(tmp_path: Path) -> Project:
    """A project of the folders `usb` and `other`; one of the clips of `usb` was moved to
    `other`."""
    usb = tmp_path / "usb"
    disk = tmp_path / "other"
    for number, folder in enumerate((usb, usb, disk)):
        write_clip(folder / f"{number}.mp4", seed=number, seconds=0.5)
    sources = [{"kind": "folder", "name": part.name, "path": str(part)} for part in (usb, disk)]
    project = open_project(tmp_path, folder_settings(usb, tmp_path / "data", sources=sources))
    for key in make_manifest(project).shards:
        make_videos(project, key)
    (usb / "0.mp4").rename(disk / "moved.mp4")
    assert not make_manifest(project).new_shards
    return project


def take_away(project: Project) -> None:
    (project.folder / "usb").rename(project.folder / "away")


def take_away_and_forget(project: Project) -> None:
    take_away(project)
    forget(project, plan_forgetting(project, [], offline="usb"))


def leave_an_empty_folder(project: Project) -> None:
    take_away_and_forget(project)
    (project.folder / "usb").mkdir()


@pytest.mark.parametrize(
    ("change", "away"),
    [(take_away, True), (take_away_and_forget, False), (leave_an_empty_folder, False)],
    ids=["away", "forgotten", "empty"],
)
def test_a_known_folder_that_is_gone_or_empty_stops_no_other(
    two_folders: Project, change: Callable[[Project], None], away: bool
) -> None:
    """What is new elsewhere is taken."""
    assert not is_away(two_folders, "usb")
    change(two_folders)
    assert is_away(two_folders, "usb") == away
    write_clip(two_folders.folder / "other" / "new.mp4", seed=9, seconds=0.5)
    with pytest.warns(UserWarning, match="source usb: .*(drive is back|from the sources)"):
        assert make_manifest(two_folders).new_shards
