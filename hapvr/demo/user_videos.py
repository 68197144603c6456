"""A folder of the user's clips as a source: most to train on, some held out as copy benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import polars as pl

from hapvr.demo.clips_benchmark import Clips, Copies, Unusable, build_benchmark, find_clips
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress
from hapvr.seeding import numpy_rng
from hapvr.tables import TABLE_ERRORS, read_user_table
from hapvr.video.settings import OwnVideosSource

MIN_CLIPS = 4
_MIN_TRAIN = 2
_BORROWED = 8
_SEED = 0


def split_user_videos(
    videos: Path,
    out: Path,
    source: OwnVideosSource,
    *,
    scenes: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> tuple[tuple[Path, ...], Unusable]:
    """Assign the clips below `videos` to train, validation and test; make the benchmarks OUT/NAME-validation and -test.

    scenes: by path below `videos`, what the clip shows; clips of one scene stay in one part, and each other clip is a scene
    of its own. The assignment depends on a clip's content (of a named scene, on its name), so it stays when
    clips are added; only where a part would lack its minimum (one scene to validate, one to test, two to train)
    are the nearest scenes moved. A held-out part of a single clip borrows training clips as distractors. The edits that
    combine two videos show a clip that is held out in the other part: it is neither a query of this part nor trained on.

    Returns the files to train on, with all unusable ones, by name; and those. Raises DataError for fewer than MIN_CLIPS
    different scenes that can be decoded.
    """
    groups, unusable = find_clips(videos, out=out, name=source.name)
    units = _scenes(groups, scenes or {}, _SEED)
    if len(units) < MIN_CLIPS:
        raise DataError(
            f"own videos: {len(units)} different decodable clips or scenes in {videos} ({len(unusable)} unusable files); "
            f"wanted at least {MIN_CLIPS}: one to validate, one to test, two to train; add clips"
        )
    draws = [draw for draw, _ in units]
    num_test, num_validation = held_out_counts(
        draws, validation_rate=source.validation_rate, test_rate=source.test_rate
    )
    borders = (0, num_test, num_test + num_validation, len(units))
    test, validation, train = (
        [group for _, groups in units[start:end] for group in groups] for start, end in pairwise(borders)
    )
    for part, held_out, other in (("test", test, validation), ("validation", validation, test)):
        _, failed = build_benchmark(
            out / f"{source.name}-{part}",
            name=f"{source.name}-{part}",
            queries=held_out,
            distractors=train[:_BORROWED] if len(held_out) == 1 else [],
            donors=[group[0] for group in other],
            copies=Copies(edits=source.edits, seed=_SEED),
            progress=progress,
        )
        unusable |= failed
    return tuple(sorted([clip.path for group in train for clip in group] + list(unusable))), unusable


def _scenes(groups: Sequence[Clips], scenes: Mapping[str, str], seed: int) -> list[tuple[float, list[Clips]]]:
    """Groups of identical files gathered by scene, with the draw of each scene in [0, 1), ascending."""
    units: dict[str, tuple[float, list[Clips]]] = {}
    for group in groups:
        named = next((scenes[clip.file] for clip in group if clip.file in scenes), None)
        key = f"sha256:{group[0].sha256}" if named is None else f"scene:{named}"
        draw = group[0].draw(seed) if named is None else float(numpy_rng(seed, "scene", named).uniform())
        units.setdefault(key, (draw, []))[1].append(group)
    return sorted(units.values(), key=lambda unit: unit[0])


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
