"""Copy benchmarks from own clips: what is in them, and what awkward input does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.corpus.clips_benchmark import CopyTask, build_benchmark, make_clips_benchmark, make_copies
from hapvr.corpus.edits import EDITS
from hapvr.corpus.output import write_mp4
from hapvr.corpus.user_clips import find_clips, load_frames
from hapvr.errors import ArgumentError, DataError, VideoError
from hapvr.progress import no_progress
from hapvr.provenance import file_sha256
from hapvr.video.decode import probe_video
from tests.corpus.conftest import moving_square


def test_make_clips_benchmark_labels_copies(clips: Path, tmp_path: Path) -> None:
    """Each query finds exactly its own copies, labelled by their edit, among all other videos."""
    made = make_clips_benchmark(
        clips, tmp_path / "made", name="own", copies_per_clip=4, distractor_rate=0.34, workers=1
    )
    definition = load_definition(made.folder)
    assert (made.num_queries, made.num_database, made.unusable) == (4, 4 * 4 + 2, ())
    videos = {row["video_id"]: row for row in definition.videos.iter_rows(named=True)}
    assert definition.labels["query_id"].value_counts()["count"].to_list() == [4] * 4
    for query, reference, label in definition.labels.iter_rows():
        assert videos[query]["group"] == videos[reference]["group"]
        assert EDITS[videos[reference]["edit"]].label == label
    assert definition.labels["label"].value_counts().sort("label").rows() == [("DS", 8), ("ND", 8)]
    for path in definition.video_files().values():
        assert probe_video(path).width_px > 0
    for row in videos.values():
        if row["edit"] == "none":
            assert file_sha256(made.folder / row["path"]) == file_sha256(clips / row["group"])


def test_copies_have_their_true_times(clips: Path, tmp_path: Path) -> None:
    """Frames of a copy at its true times are those of the query, whatever the edit did to time."""
    made = make_clips_benchmark(
        clips, tmp_path / "made", name="own", copies_per_clip=14, distractor_rate=0.34, workers=1
    )
    definition = load_definition(made.folder)
    videos = {row["video_id"]: row for row in definition.videos.iter_rows(named=True)}
    assert definition.segments["reference_id"].n_unique() == len(definition.labels)
    files = definition.video_files()
    seen = set()
    for query, copy, *times in definition.segments.iter_rows():
        kind = videos[copy]["edit"]
        if kind not in ("low_bitrate", "fast_forward", "slow_motion", "excerpt", "compilation", "drop_cut", "reverse"):
            continue
        (original, fps), (edited, _) = load_frames(files[query]), load_frames(files[copy])
        first, end, shown, shown_end = (round(time * fps) for time in times)
        backwards = kind == "reverse"
        assert np.abs(edited[shown].astype(int) - original[end - 1 if backwards else first]).mean() < 16, kind
        assert np.abs(edited[shown_end - 1].astype(int) - original[first if backwards else end - 1]).mean() < 16, kind
        seen.add(kind)
    assert len(seen) >= 5


def test_parts_are_shown_in_longer_footage(tmp_path: Path) -> None:
    """Copies of 3 s and 5 s of a longer clip lie within twenty seconds of a clip that is no query."""
    clips = tmp_path / "clips"
    clips.mkdir()
    for number in range(3):
        write_mp4(clips / f"clip {number}.mp4", moving_square(number, num_frames=60), fps=10)
    made = make_clips_benchmark(clips, tmp_path / "made", name="own", edits="parts", distractor_rate=0.34, workers=1)
    definition = load_definition(made.folder)
    videos = {row["video_id"]: row for row in definition.videos.iter_rows(named=True)}
    assert [videos[copy]["edit"] for copy in definition.labels["reference_id"]] == ["part_3s", "part_5s"] * 2
    for _, copy, start, end, shown, shown_end in definition.segments.iter_rows():
        length_s = int(videos[copy]["edit"][5])
        assert length_s - 0.31 < end - start <= length_s + 1e-9
        assert 0 < shown < shown_end < 20
        assert 0.75 <= (end - start) / (shown_end - shown) <= 1.5 + 0.05
        assert probe_video(definition.video_files()[copy]).duration_s == pytest.approx(20, abs=0.2)
    with pytest.raises(DataError, match="parts need queries that are longer and a clip that is none"):
        make_clips_benchmark(clips, tmp_path / "none", name="own", edits="parts", distractor_rate=0, workers=1)


def test_benchmark_of_before_there_were_true_times_gets_them(clips: Path, tmp_path: Path) -> None:
    """A folder of format 1 gets segments.parquet; no video and no label changes."""
    options: dict[str, Any] = {"name": "own", "copies_per_clip": 3, "workers": 1}
    folder = make_clips_benchmark(clips, tmp_path / "made", **options).folder
    wanted = load_definition(folder)
    head = json.loads((folder / "benchmark.json").read_text())
    (folder / "benchmark.json").write_text(json.dumps(head | {"format_version": 1}))
    (folder / "segments.parquet").unlink()
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.mp4") if "copies" in path.parts}
    make_clips_benchmark(clips, folder, **options)
    again = load_definition(folder)
    assert again.segments.equals(wanted.segments)
    assert again.labels.equals(wanted.labels)
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_make_clips_benchmark_accounts_for_every_file(awkward_clips: Path, tmp_path: Path) -> None:
    """Broken files are listed with a reason, a repeated file is a near duplicate, odd names become ids."""
    made = make_clips_benchmark(awkward_clips, tmp_path / "made", name="own", distractor_rate=0.0, workers=1)
    reasons = {file.path.name: file.reason for file in made.unusable}
    assert set(reasons) == {"text.mp4", "empty.mp4", "truncated.mp4", "sound.mp4"}
    assert reasons["empty.mp4"] == "empty_file"
    assert reasons["sound.mp4"] == "no_video_stream"
    definition = load_definition(made.folder)
    originals = [video for video in definition.video_ids if video.startswith("own/originals/")]
    assert len(originals) + len(made.unusable) == sum(path.is_file() for path in awkward_clips.rglob("*.mp4"))
    repeated = definition.videos.filter(edit="same_file")
    assert len(repeated) == 1
    assert definition.labels.filter(reference_id=repeated["video_id"][0])["label"].to_list() == ["ND"]
    assert {"own/originals/a 'quoted' \"name\" — 映像.mp4", "own/originals/sub/nested.mp4"} <= set(originals)


def test_make_clips_benchmark_takes_names_as_long_as_they_can_be(clips: Path, tmp_path: Path) -> None:
    """Files whose names leave no room for a suffix, or whose folders are many, are clips as others are."""
    deep = clips.joinpath(*["folder of a clip"] * 80)
    deep.mkdir(parents=True)
    (clips / "clip 0.mp4").rename(clips / f"{'x' * 251}.mp4")
    (clips / "clip 1.mp4").rename(deep / "clip 1.mp4")
    made = make_clips_benchmark(clips, tmp_path / "made", name="own", copies_per_clip=1, distractor_rate=0.0)
    assert (made.num_queries, made.unusable) == (6, ())
    assert all(path.is_file() for path in load_definition(made.folder).video_files().values())


@pytest.mark.slow
def test_make_clips_benchmark_repeats_itself(clips: Path, tmp_path: Path) -> None:
    """Equal input gives equal files, whatever the workers; a second call writes nothing; other settings start anew."""
    first = make_clips_benchmark(clips, tmp_path / "a", name="own", copies_per_clip=3, workers=1)
    make_clips_benchmark(clips, tmp_path / "b", name="own", copies_per_clip=3, workers=2)
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.mp4")]
    assert files
    assert all(file_sha256(tmp_path / "a" / file) == file_sha256(tmp_path / "b" / file) for file in files)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")}
    assert make_clips_benchmark(clips, tmp_path / "a", name="own", copies_per_clip=3, workers=1) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")} == times
    other = make_clips_benchmark(clips, tmp_path / "a", name="own", copies_per_clip=2, workers=1)
    assert other.num_database < first.num_database


def test_make_copies_says_why_a_clip_fails(clips: Path, tmp_path: Path) -> None:
    """A file that breaks after it was listed gives its reason, and the others are made."""
    listed = find_clips(clips, out=tmp_path / "made", name="own", workers=1).clips
    listed[0].path.write_text("gone bad")
    with pytest.raises(VideoError, match=listed[0].path.name) as caught:
        make_copies(CopyTask(listed[0], None, tmp_path, ("flip",), 0))
    assert caught.value.reason == "not_video"
    made = build_benchmark(
        tmp_path / "made",
        name="own",
        queries=[[clip] for clip in listed[:3]],
        distractors=[],
        donors=[],
        copies_per_clip=1,
        edits="usual",
        max_queries=9,
        seed=0,
        workers=2,
        progress=no_progress,
    )
    assert made.num_queries == 2
    assert [(file.path, file.reason) for file in made.unusable] == [(listed[0].path, "not_video")]


@pytest.mark.slow
def test_copies_that_combine_two_videos_show_another_clip_of_the_user(clips: Path, tmp_path: Path) -> None:
    """The second video is a clip that is no query; where all clips are queries, no copy combines two."""
    made = make_clips_benchmark(clips, tmp_path / "some", name="own", copies_per_clip=14, distractor_rate=0.34)
    definition = load_definition(made.folder)
    videos = definition.videos
    inputs = definition.provenance["inputs"]
    assert isinstance(inputs, dict)
    distractors = {digest for name, digest in inputs.items() if name.startswith("distractor:")}
    donors = {digest for name, digest in inputs.items() if name.startswith("donor:")}
    assert donors
    assert donors <= distractors
    combined = videos.filter(videos["edit"] == "compilation")
    query = combined["group"][0]
    copy, _ = load_frames(made.folder / combined["path"][0])
    [donor] = [path for path in clips.iterdir() if file_sha256(path) == inputs[f"donor:{query}"]]
    shown = load_frames(donor)[0]
    assert np.abs(copy[0].astype(int) - shown[0]).mean() < 12
    made = make_clips_benchmark(clips, tmp_path / "all", name="own", copies_per_clip=14, distractor_rate=0)
    edits = set(load_definition(made.folder).videos["edit"])
    assert not {kind for kind in edits & set(EDITS) if EDITS[kind].combines}


def test_make_clips_benchmark_needs_two_clips(clips: Path, tmp_path: Path) -> None:
    """A missing folder, an empty one and one with a single clip say what is wanted."""
    single = tmp_path / "single"
    single.mkdir()
    with pytest.raises(DataError, match="no videos in"):
        make_clips_benchmark(single, tmp_path / "made", name="own")
    for name in ("one.mp4", "same.mp4"):
        shutil.copy(clips / "clip 0.mp4", single / name)
        with pytest.raises(DataError, match=r"1 different decodable clips.*wanted at least 2"):
            make_clips_benchmark(single, tmp_path / "made", name="own")
    with pytest.raises(DataError, match="is no folder"):
        make_clips_benchmark(tmp_path / "none", tmp_path / "made", name="own")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies_per_clip": 0}, "copies_per_clip: got 0; wanted 1 to 14"),
        ({"copies_per_clip": 15}, "copies_per_clip: got 15"),
        ({"distractor_rate": 1.0}, "distractor_rate: got 1.0"),
        ({"max_queries": 0}, "max_queries: got 0"),
    ],
)
def test_make_clips_benchmark_refuses_numbers_out_of_range(
    clips: Path, tmp_path: Path, options: dict[str, float], message: str
) -> None:
    """The error names the argument, its value and the limits."""
    with pytest.raises(ArgumentError, match=message):
        make_clips_benchmark(clips, tmp_path / "made", name="own", **options)


def test_find_clips_refuses_output_among_the_input(clips: Path) -> None:
    """Results inside the folder of clips would be taken for clips by the next call."""
    with pytest.raises(ArgumentError, match="lies inside the folder of clips"):
        find_clips(clips, out=clips / "made", name="own", workers=1)


def test_load_frames_bounds_length_and_size(clips: Path) -> None:
    """Small frames are enlarged to 64 pixels at least, and the rate never exceeds ten per second."""
    frames, fps = load_frames(clips / "clip 0.mp4")
    assert frames.shape[1:] == (64, 96, 3)
    assert fps <= 10
    assert 15 <= len(frames) <= 20
    single, _ = load_frames(clips / "clip 5.mp4")
    assert len(single) == 1
