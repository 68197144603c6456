"""Copy benchmarks from own clips: what is in them, and what awkward input does."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hapvr.benchmark.definition import BenchmarkDefinition, load_definition
from hapvr.demo.clips_benchmark import MIN_CLIPS, held_out_counts, load_frames, split_user_videos
from hapvr.demo.edits import ALL_EDITS
from hapvr.errors import DataError
from hapvr.files import file_sha256
from hapvr.steps.project import Project
from hapvr.steps.sources import source_scenes
from hapvr.video.decode import probe_video
from hapvr.video.pool import in_workers
from hapvr.video.settings import CopyEdits, OwnVideosSource, SamplingConfig


def own(videos: Path, **settings: Any) -> OwnVideosSource:
    return OwnVideosSource(kind="own_videos", name="own", path=videos, **settings)


def benchmark(clips: Path, out: Path, *, edits: CopyEdits = "usual") -> BenchmarkDefinition:
    """Three of the six clips are its queries."""
    split_user_videos(clips, out, own(clips, edits=edits, validation_rate=0.0, test_rate=0.9))
    return load_definition(out / "own-test")


@pytest.mark.slow
@pytest.mark.parametrize(("edits", "num_labels"), [("usual", [6, 6, 3]), ("hard", [15, 3])])
def test_a_benchmark_labels_copies(
    clips: Path, tmp_path: Path, edits: CopyEdits, num_labels: list[int]
) -> None:
    """Each query finds exactly its own copies, labelled by their edit, among all other videos."""
    definition = benchmark(clips, tmp_path, edits=edits)
    assert len(definition.queries) == 3
    assert len(definition.database) == sum(num_labels)
    assert [task.name for task in definition.tasks] == ["DSVR", "DSVD", "parts"]
    videos = {row["video_id"]: row for row in definition.videos.iter_rows(named=True)}
    for query, reference, label in definition.labels.iter_rows():
        assert videos[query]["group"] == videos[reference]["group"]
        assert ALL_EDITS[videos[reference]["edit"]].label == label

    assert definition.labels["label"].value_counts().sort("label")["count"].to_list() == num_labels
    for row in videos.values():
        assert probe_video(tmp_path / "own-test" / row["path"]).width_px > 0
        if row["edit"] == "none":
            assert file_sha256(tmp_path / "own-test" / row["path"]) == file_sha256(
                clips / row["group"]
            )


@pytest.mark.slow
def test_copies_have_their_true_times(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of a copy at its true times are those of the query, whatever the edit did to time."""
    monkeypatch.setattr("hapvr.demo.clips_benchmark.COPIES_PER_CLIP", 14)
    definition = benchmark(clips, tmp_path)
    videos = {row["video_id"]: row for row in definition.videos.iter_rows(named=True)}
    assert definition.segments["reference_id"].n_unique() == len(definition.labels)
    files = {video_id: tmp_path / "own-test" / row["path"] for video_id, row in videos.items()}
    decoded = dict(in_workers(load_frames, files.values(), config=SamplingConfig()))
    seen = set()
    for query, copy, *times in definition.segments.iter_rows():
        kind = videos[copy]["edit"]
        if kind not in (
            "low_bitrate",
            "fast_forward",
            "slow_motion",
            "excerpt",
            "compilation",
            "drop_cut",
            "reverse",
        ):
            continue

        original, fps = decoded[files[query]]
        edited, _ = decoded[files[copy]]
        first, end, shown, shown_end = np.round(np.array(times) * fps).astype(int)
        backwards = kind == "reverse"
        assert (
            np.abs(edited[shown].astype(int) - original[end - 1 if backwards else first]).mean()
            < 16
        ), kind
        assert (
            np.abs(
                edited[shown_end - 1].astype(int) - original[first if backwards else end - 1]
            ).mean()
            < 16
        ), kind
        seen.add(kind)

    assert len(seen) >= 5


def originals(folder: Path) -> set[str]:
    """Names of the user's files in a benchmark."""
    definition = load_definition(folder)
    prefix = f"{definition.name}/originals/"
    return {
        video.removeprefix(prefix) for video in definition.video_ids if video.startswith(prefix)
    }


def test_split_user_videos_accounts_for_every_file(awkward_clips: Path, tmp_path: Path) -> None:
    """Each input file is in exactly one part; broken ones are among the training files and listed
    with a reason."""
    source = own(awkward_clips, validation_rate=0.3, test_rate=0.3)
    parts = split_user_videos(awkward_clips, tmp_path, source)
    train = {path.relative_to(awkward_clips).as_posix() for path in parts[0]}
    held_out = {path.relative_to(awkward_clips).as_posix() for path in parts[1]}
    test = originals(tmp_path / "own-test")
    validation = originals(tmp_path / "own-validation")
    everything = {
        path.relative_to(awkward_clips).as_posix()
        for path in awkward_clips.rglob("*.mp4")
        if path.is_file()
    }
    assert not test & validation
    assert held_out == test | validation
    assert not train & held_out
    assert train | held_out == everything
    assert train >= {"text.mp4", "empty.mp4", "truncated.mp4", "sound.mp4"}


@pytest.mark.slow
def test_split_user_videos_keeps_its_assignment(clips: Path, tmp_path: Path) -> None:
    """Renaming a clip or adding others moves no clip between the parts; identical files stay
    together."""
    source = own(clips, validation_rate=0.4, test_rate=0.4)
    before, _ = split_user_videos(clips, tmp_path / "a", source)
    for path in before:
        path.rename(path.with_name(f"renamed {path.name}"))
    shutil.copy(clips / f"renamed {before[0].name}", clips / "again.mp4")
    after, _ = split_user_videos(clips, tmp_path / "b", source)
    held_out = {f"clip {index}.mp4" for index in range(6)} - {path.name for path in before}
    assert {path.name for path in after} == {f"renamed {path.name}" for path in before} | {
        "again.mp4"
    }
    assert held_out <= originals(tmp_path / "b" / "own-test") | originals(
        tmp_path / "b" / "own-validation"
    )


def test_too_few_clips_and_a_wrong_table_are_named(
    clips: Path, small_project: Project, tmp_path: Path
) -> None:
    """Four clips are enough: two to train, and one query each with borrowed distractors; three are
    refused."""
    for index in (4, 5):
        (clips / f"clip {index}.mp4").unlink()
    with pytest.warns(UserWarning, match=r"1 rows .* no clip below .*'./clip 0.mp4'"):
        train, _ = split_user_videos(
            clips, tmp_path, own(clips), scenes={"./clip 0.mp4": "a", "clip 1.mp4": "b"}
        )

    assert len(train) == 2
    assert [
        len(load_definition(tmp_path / f"own-{part}").queries) for part in ("test", "validation")
    ] == [1, 1]
    assert len(load_definition(tmp_path / "own-test").database) == 2 + 5
    (clips / "clip 3.mp4").unlink()
    (clips / "again.mp4").write_bytes(
        (clips / "clip 0.mp4").read_bytes()
    )  # found only by looking inside
    for _ in range(2):
        with pytest.raises(
            DataError,
            match=r"too few different clips.* 3 .*at least 4.*`hapvr index add [^`]*clips`",
        ):
            split_user_videos(clips, tmp_path, own(clips))

        (clips / "again.mp4").unlink(missing_ok=True)

    (tmp_path / "scenes.csv").write_text("a,b\n1,2\n")
    for name in ("scenes.csv", "missing.csv"):
        with pytest.raises(DataError, match=f"{name} cannot be read as scenes .*columns file"):
            source_scenes(small_project, own(clips, scenes=tmp_path / name))


@given(
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=MIN_CLIPS, max_size=40).map(sorted),
    validation_rate=st.floats(0, 0.5),
    test_rate=st.floats(0, 0.49),
)
def test_held_out_counts_leave_some_everywhere(
    draws: list[float], validation_rate: float, test_rate: float
) -> None:
    """However the draws fall, one clip is for test, one for validation, and two are for training;
    many follow the rates."""
    num_test, num_validation = held_out_counts(
        draws, validation_rate=validation_rate, test_rate=test_rate
    )
    assert num_test >= 1
    assert num_validation >= 1
    assert len(draws) - num_test - num_validation >= 2
    many = [index / 100 for index in range(100)]
    assert held_out_counts(many, validation_rate=0.15, test_rate=0.3) == (30, 15)
