"""Own clips as a source: a stable split in which no file is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.corpus.user_videos import MIN_CLIPS, held_out_counts, read_scenes, split_user_videos
from hapvr.errors import ArgumentError, DataError

REAL_CLIPS = Path(__file__).resolve().parents[3] / "shared" / "videos"


def originals(folder: Path) -> set[str]:
    """Names of the user's files in a benchmark."""
    definition = load_definition(folder)
    prefix = f"{definition.name}/originals/"
    return {video.removeprefix(prefix) for video in definition.video_ids if video.startswith(prefix)}


def test_split_user_videos_accounts_for_every_file(awkward_clips: Path, tmp_path: Path) -> None:
    """Each input file is in exactly one part; broken ones are among the training files and listed with a reason."""
    made = split_user_videos(
        awkward_clips, tmp_path / "out", name="own", validation_rate=0.3, test_rate=0.3, copies_per_clip=2, workers=1
    )
    train = {path.relative_to(awkward_clips).as_posix() for path in made.train}
    test, validation = originals(tmp_path / "out" / "own-test"), originals(tmp_path / "out" / "own-validation")
    borrowed = (test | validation) & train
    assert not test & validation
    everything = {path.relative_to(awkward_clips).as_posix() for path in awkward_clips.rglob("*.mp4") if path.is_file()}
    assert train | test | validation == everything
    assert {file.path.name for file in made.unusable} == {"text.mp4", "empty.mp4", "truncated.mp4", "sound.mp4"}
    assert {file.path for file in made.unusable} <= set(made.train)
    assert made.ignored == ("README.md",)
    assert not borrowed or 1 in (made.test.num_queries, made.validation.num_queries)


@pytest.mark.slow
def test_split_user_videos_keeps_its_assignment(clips: Path, tmp_path: Path) -> None:
    """Renaming a clip or adding others moves no clip between the parts; identical files stay together."""
    options = {"validation_rate": 0.4, "test_rate": 0.4, "copies_per_clip": 1, "workers": 1}
    before = split_user_videos(clips, tmp_path / "a", name="own", **options)
    for path in before.train:
        path.rename(path.with_name(f"renamed {path.name}"))
    shutil.copy(clips / f"renamed {before.train[0].name}", clips / "again.mp4")
    after = split_user_videos(clips, tmp_path / "b", name="own", **options)
    held_out = {f"clip {index}.mp4" for index in range(6)} - {path.name for path in before.train}
    assert {path.name for path in after.train} == {f"renamed {path.name}" for path in before.train} | {"again.mp4"}
    assert held_out <= originals(tmp_path / "b" / "own-test") | originals(tmp_path / "b" / "own-validation")


@pytest.mark.slow
def test_split_user_videos_keeps_scenes_whole(clips: Path, tmp_path: Path) -> None:
    """Clips of one scene are all trained on or all held out on one side, whatever the seed; hard edits alter every copy."""
    scenes = {"clip 0.mp4": "park", "clip 1.mp4": "park", "clip 2.mp4": "park"}
    table = tmp_path / "scenes.csv"
    table.write_text("file,scene\n" + "".join(f"{file},{scene}\n" for file, scene in scenes.items()))
    for seed in range(3):
        out = tmp_path / f"out {seed}"
        made = split_user_videos(
            clips, out, name="own", test_rate=0.4, scenes=read_scenes(table), edits="hard", seed=seed, workers=1
        )
        parts = [
            {path.name for path in made.train},
            *(
                {Path(query).name for query in load_definition(out / f"own-{part}").queries}
                for part in ("test", "validation")
            ),
        ]
        assert sorted(len(part & scenes.keys()) for part in parts) == [0, 0, 3]
    kinds = {video.split("/")[2] for video in load_definition(out / "own-test").video_ids if "/copies/" in video}
    assert kinds == {"crop_hue_contrast", "flip_blur_pad", "fast_grey_noise", "picture_in_picture", "five_seconds"}


@pytest.mark.parametrize("text", ["a,b\n1,2\n", ""])
def test_read_scenes_names_a_file_that_is_no_table_of_scenes(text: str, tmp_path: Path) -> None:
    """Other columns, an empty file and a missing one are refused with what is wanted."""
    path = tmp_path / "scenes.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=r"scenes\.csv cannot be read as scenes .*columns file"):
        read_scenes(path)
    with pytest.raises(DataError, match=r"missing\.csv cannot be read as scenes"):
        read_scenes(tmp_path / "missing.csv")


def test_split_user_videos_needs_four_clips(clips: Path, tmp_path: Path) -> None:
    """Four clips are enough: two to train, and one query each with borrowed distractors; three are refused."""
    for index in (4, 5):
        (clips / f"clip {index}.mp4").unlink()
    made = split_user_videos(clips, tmp_path / "out", name="own", copies_per_clip=2, workers=1)
    assert len(made.train) == 2
    assert (made.test.num_queries, made.validation.num_queries) == (1, 1)
    assert made.test.num_database == 2 + 2
    (clips / "clip 3.mp4").unlink()
    with pytest.raises(DataError, match=r"3 different decodable clips.*wanted at least 4"):
        split_user_videos(clips, tmp_path / "out", name="own")


def test_split_user_videos_refuses_rates_without_training(clips: Path, tmp_path: Path) -> None:
    """Rates that leave nothing to train on are named."""
    with pytest.raises(ArgumentError, match=r"got 0.5 and 0.5"):
        split_user_videos(clips, tmp_path / "out", name="own", validation_rate=0.5, test_rate=0.5)


@given(
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=MIN_CLIPS, max_size=40).map(sorted),
    validation_rate=st.floats(0, 0.5),
    test_rate=st.floats(0, 0.49),
)
def test_held_out_counts_leave_something_everywhere(
    draws: list[float], validation_rate: float, test_rate: float
) -> None:
    """However the draws fall, one clip is for test, one for validation, and two are for training."""
    num_test, num_validation = held_out_counts(draws, validation_rate=validation_rate, test_rate=test_rate)
    assert num_test >= 1
    assert num_validation >= 1
    assert len(draws) - num_test - num_validation >= 2


def test_held_out_counts_follow_the_rates() -> None:
    """With enough clips the counts are those of the draws below the rates."""
    draws = [index / 100 for index in range(100)]
    assert held_out_counts(draws, validation_rate=0.15, test_rate=0.3) == (30, 15)


@pytest.mark.slow
@pytest.mark.skipif(not REAL_CLIPS.is_dir(), reason="the folder shared/videos beside the repository is not there")
def test_split_user_videos_of_real_clips(tmp_path: Path) -> None:
    """All 45 real clips are in a part; the folder's README is the one file that is ignored."""
    made = split_user_videos(REAL_CLIPS, tmp_path, name="own")
    held_out = originals(tmp_path / "own-test") | originals(tmp_path / "own-validation")
    assert {path.name for path in made.train} | held_out == {path.name for path in REAL_CLIPS.iterdir()} - {"README.md"}
    assert (made.unusable, made.ignored) == ((), ("README.md",))
    assert len(held_out) + len(made.train) == 45
