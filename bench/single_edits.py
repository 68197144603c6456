"""How well a search finds the original of a single edit, and how far its probabilities can be
trusted.

    python -m bench.single_edits --videos CLIPS [CLIPS ...] --out FOLDER [--fitted]

Nine edits of each of 35 clips (`bench.duplicates`) are searched for among all clips, with default
settings. The originals are from the half of the clips on which the shipped probability was not
fitted, or from the other half. Videos that share footage with an edit, or show another take of its
scene, are left out of its answers (`bench/shared_footage.csv`); the same answers without the
original show what is reported for clips that are not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.duplicates import EASY, HARD, SOURCE, all_clips, copy_tasks, options_of
from bench.labels import FootageLabels, read_labels
from bench.quality import PRECISION, SYSTEMS, WORKERS, ask, measures, open_searcher, without
from bench.table import show
from hapvr.demo.clips_benchmark import CopyTask, make_copies
from hapvr.errors import VideoError
from hapvr.video.pool import in_workers

GROUPS = {"all": (*EASY, *HARD), "easy": EASY, "hard": HARD}
UNSURE = 0.05
"""Probability above which a video is called unsure, up to PRECISION."""


@dataclass(frozen=True)
class Query:
    """An edit of a clip."""

    path: Path
    edit: str
    original: str
    """video id"""
    unjudged: frozenset[str]
    """videos that are neither right nor wrong"""


def queries_of(
    task: CopyTask, video_ids: Collection[str], labels: FootageLabels, edits_folder: Path
) -> Iterator[Query]:
    """The edits of a clip, which are written."""
    clip, donor, edits = task
    names = [clip.path.name, donor.path.name]
    scene = labels.sharing(names) | labels.retaking(names) | {donor.path.name}
    original = f"{SOURCE}/{clip.path.name}"
    unjudged = frozenset(
        video_id
        for video_id in video_ids
        if video_id != original and video_id.removeprefix(f"{SOURCE}/") in scene
    )
    for edit in edits:
        yield Query(edits_folder / clip.place(edit), edit, original, unjudged)


def rows(queries: Sequence[Query], scores_of: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """By group of edits and system, how well the originals are found; of answers also what they
    call a match or unsure, with the original and without."""
    for name, edits in GROUPS.items():
        places = [place for place, query in enumerate(queries) if query.edit in edits]
        originals = [queries[place].original for place in places]
        for system in SYSTEMS:
            judged = [
                without(scores_of[place][system], queries[place].unjudged) for place in places
            ]
            values = measures(judged, originals, np.ones((1, len(judged))))
            row: dict[str, Any] = {"edits": name, "queries": len(places), "system": system}
            row |= {measure: float(value[0]) for measure, value in values.items()}
            yield row | (_verdicts(judged, originals) if system == "answer" else {})


def _verdicts(answers: Sequence[dict[str, float]], originals: Sequence[str]) -> dict[str, Any]:
    """What answers call a match, and what they report if the original is not there."""
    called = [
        video_id == original
        for answer, original in zip(answers, originals, strict=True)
        for video_id, probability in answer.items()
        if probability >= PRECISION
    ]
    absent = [
        max(without(answer, {original}).values(), default=0.0)
        for answer, original in zip(answers, originals, strict=True)
    ]
    return {
        "match: recall": sum(called) / len(answers),
        "match: precision": float(np.mean(called)) if called else float("nan"),
        "absent: match": float(np.mean([best >= PRECISION for best in absent])),
        "absent: unsure": float(np.mean([UNSURE < best < PRECISION for best in absent])),
    }


def main() -> None:
    """Writes the edits, searches for them and prints a table."""
    options = options_of(__doc__)
    clips = all_clips(options.videos, options.out)
    tasks = copy_tasks(clips, fitted=options.fitted)
    folder = options.out / SOURCE
    folder.mkdir(parents=True, exist_ok=True)
    for clip in clips:
        link = folder / clip.path.name
        if not link.exists():
            link.hardlink_to(clip.path)

    edits_folder = options.out / "edits"
    for _, failure in in_workers(partial(make_copies, videos=edits_folder), tasks, config=WORKERS):
        if isinstance(failure, VideoError):
            raise failure

    searcher = open_searcher(options.out)
    labels = read_labels()
    queries: list[Query] = []
    for task in tasks:
        queries += queries_of(task, searcher.collection.shard_of, labels, edits_folder)

    scores_of = list(ask(searcher, [query.path for query in queries]))
    show(list(rows(queries, scores_of)))


if __name__ == "__main__":
    main()
