"""A folder of the user's clips as a source: most to train on, some held out as copy benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hapvr.corpus.clips_benchmark import COPIES_PER_CLIP, MAX_QUERIES, CopyBenchmark, build_benchmark
from hapvr.corpus.user_clips import UnusableFile, find_clips, without_repeats
from hapvr.errors import ArgumentError, DataError
from hapvr.progress import Progress, no_progress

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
    copies_per_clip: int = COPIES_PER_CLIP,
    max_queries: int = MAX_QUERIES,
    seed: int = 0,
    workers: int = 2,
    progress: Progress = no_progress,
) -> UserVideos:
    """Assign the clips below `videos` to train, validation and test; make the benchmarks OUT/NAME-validation and -test.

    validation_rate, test_rate: chance of a clip to be held out, in [0, 1], together less than 1. The assignment depends
    on a clip's content and `seed`, so it stays when clips are added; only where a part would lack its minimum (one clip
    to validate, one to test, two to train) are the nearest clips moved. A held-out part of a single clip borrows
    training clips as distractors. The edits that combine two videos show a clip that is held out in the other part: it
    is neither a query of this part nor trained on. Raises DataError for fewer than MIN_CLIPS different clips that can be
    decoded.
    """
    if not (0 <= validation_rate <= 1 and 0 <= test_rate <= 1 and validation_rate + test_rate < 1):
        raise ArgumentError(
            f"validation_rate and test_rate: got {validation_rate} and {test_rate}; wanted rates with a sum below 1"
        )
    found = find_clips(videos, out=out, name=name, workers=workers)
    groups = sorted(without_repeats(found.clips), key=lambda group: group[0].draw(seed))
    if len(groups) < MIN_CLIPS:
        raise DataError(
            f"own videos: {len(groups)} different decodable clips in {videos} ({len(found.unusable)} unusable files); "
            f"wanted at least {MIN_CLIPS}: one to validate, one to test and two to train on; add clips"
        )
    draws = [group[0].draw(seed) for group in groups]
    num_test, num_validation = held_out_counts(draws, validation_rate=validation_rate, test_rate=test_rate)
    train = groups[num_test + num_validation :]
    parts = {"test": groups[:num_test], "validation": groups[num_test : num_test + num_validation]}
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
            max_queries=max_queries,
            seed=seed,
            workers=workers,
            progress=progress,
        )
    unusable = found.unusable + made["validation"].unusable + made["test"].unusable
    paths = [clip.path for group in train for clip in group] + [file.path for file in unusable]
    return UserVideos(tuple(sorted(paths)), made["validation"], made["test"], unusable, found.ignored)


def held_out_counts(draws: Sequence[float], *, validation_rate: float, test_rate: float) -> tuple[int, int]:
    """How many of the clips with the lowest draws are for test, and how many of the next are for validation.

    draws: at least MIN_CLIPS numbers in [0, 1), ascending. Both counts are at least 1 and leave two clips or more.
    """
    room = len(draws) - _MIN_TRAIN
    num_test = sum(draw < test_rate for draw in draws)
    num_validation = sum(test_rate <= draw < test_rate + validation_rate for draw in draws)
    num_test = min(max(num_test, 1), room - 1)
    return num_test, min(max(num_validation, 1), room - num_test)
