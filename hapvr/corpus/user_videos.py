"""A folder of the user's clips as a source: most to train on, some held out as copy benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hapvr.corpus.clips_benchmark import COPIES_PER_CLIP, MAX_QUERIES, CopyBenchmark, build_benchmark
from hapvr.corpus.user_clips import UnusableFile, UserClip, find_clips, without_repeats
from hapvr.errors import ArgumentError, DataError
from hapvr.progress import Progress, no_progress
from hapvr.seeding import numpy_rng
from hapvr.tables import TABLE_ERRORS, read_user_table
from hapvr.video.settings import CopyEdits

MIN_CLIPS = 4
_MIN_TRAIN = 2
_BORROWED = 8


@dataclass(frozen=True)
class UserVideos:
    """The split of a folder's files: each is in `train`, in a benchmark's originals, or ignored.

    train: files to train on and all unusable ones, by name. ignored: relative paths of files not named like videos.
    """

    train: tuple[Path, ...]
    validation: CopyBenchmark
    test: CopyBenchmark
    unusable: tuple[UnusableFile, ...]
    ignored: tuple[str, ...]


def split_user_videos(
    videos: Path,
    out: Path,
    *,
    name: str,
    validation_rate: float = 0.15,
    test_rate: float = 0.3,
    scenes: Mapping[str, str] | None = None,
    copies_per_clip: int = COPIES_PER_CLIP,
    edits: CopyEdits = "usual",
    max_queries: int = MAX_QUERIES,
    seed: int = 0,
    workers: int = 2,
    progress: Progress = no_progress,
) -> UserVideos:
    """Assign the clips below `videos` to train, validation and test; make the benchmarks OUT/NAME-validation and -test.

    validation_rate, test_rate: chance of a clip to be held out, in [0, 1], together less than 1. scenes: by path below
    `videos`, what the clip shows; clips of one scene stay in one part, and each other clip is a scene of its own. The
    assignment depends on a clip's content (of a named scene, on its name) and `seed`, so it stays when clips are added;
    only where a part would lack its minimum (one scene to validate, one to test, two to train) are the nearest scenes
    moved. A held-out part of a single clip borrows training clips as distractors. The edits that combine two videos show
    a clip that is held out in the other part: it is neither a query of this part nor trained on. Raises DataError for
    fewer than MIN_CLIPS different scenes that can be decoded.
    """
    if not (0 <= validation_rate <= 1 and 0 <= test_rate <= 1 and validation_rate + test_rate < 1):
        raise ArgumentError(
            f"validation_rate and test_rate: got {validation_rate} and {test_rate}; wanted rates with a sum below 1"
        )
    found = find_clips(videos, out=out, name=name, workers=workers)
    units = _scenes(without_repeats(found.clips), scenes or {}, seed)
    if len(units) < MIN_CLIPS:
        raise DataError(
            f"own videos: {len(units)} different decodable clips or scenes in {videos} ({len(found.unusable)} unusable files); "
            f"wanted at least {MIN_CLIPS}: one to validate, one to test and two to train on; add clips"
        )
    draws = [draw for draw, _ in units]
    num_test, num_validation = held_out_counts(draws, validation_rate=validation_rate, test_rate=test_rate)
    test, validation, train = (
        [group for _, groups in units[start:end] for group in groups]
        for start, end in (
            (0, num_test),
            (num_test, num_test + num_validation),
            (num_test + num_validation, len(units)),
        )
    )
    parts = {"test": test, "validation": validation}
    made = {}
    for part, other in (("test", "validation"), ("validation", "test")):
        held_out = parts[part]
        made[part] = build_benchmark(
            out / f"{name}-{part}",
            name=f"{name}-{part}",
            queries=held_out,
            distractors=train[:_BORROWED] if len(held_out) == 1 else [],
            donors=[group[0] for group in parts[other]],
            copies_per_clip=copies_per_clip,
            edits=edits,
            max_queries=max_queries,
            seed=seed,
            workers=workers,
            progress=progress,
        )
    unusable = found.unusable + made["validation"].unusable + made["test"].unusable
    paths = [clip.path for group in train for clip in group] + [file.path for file in unusable]
    return UserVideos(tuple(sorted(paths)), made["validation"], made["test"], unusable, found.ignored)


def _scenes(
    groups: Sequence[list[UserClip]], scenes: Mapping[str, str], seed: int
) -> list[tuple[float, list[list[UserClip]]]]:
    """Groups of identical files gathered by scene, with the draw of each scene in [0, 1), ascending."""
    units: dict[str, list[list[UserClip]]] = {}
    draws: dict[str, float] = {}
    for group in groups:
        named = next((scenes[clip.file] for clip in group if clip.file in scenes), None)
        key = f"sha256:{group[0].sha256}" if named is None else f"scene:{named}"
        draws[key] = group[0].draw(seed) if named is None else float(numpy_rng(seed, "scene", named).uniform())
        units.setdefault(key, []).append(group)
    return sorted(((draws[key], members) for key, members in units.items()), key=lambda unit: unit[0])


def read_scenes(path: Path) -> dict[str, str]:
    """Path of a clip to its scene, from a CSV file with the columns `file` and `scene`. Raises DataError naming the file."""
    try:
        table = read_user_table(path).select("file", "scene")
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"own videos: {path} cannot be read as scenes ({str(error).splitlines()[0]}); wanted a CSV file with the columns "
            f"file (path below the folder of clips) and scene"
        ) from error
    return dict(table.drop_nulls().iter_rows())


def held_out_counts(draws: Sequence[float], *, validation_rate: float, test_rate: float) -> tuple[int, int]:
    """How many of the clips with the lowest draws are for test, and how many of the next are for validation.

    draws: at least MIN_CLIPS numbers in [0, 1), ascending. Both counts are at least 1 and leave two clips or more.
    """
    room = len(draws) - _MIN_TRAIN
    num_test = sum(draw < test_rate for draw in draws)
    num_validation = sum(test_rate <= draw < test_rate + validation_rate for draw in draws)
    num_test = min(max(num_test, 1), room - 1)
    return num_test, min(max(num_validation, 1), room - num_test)
