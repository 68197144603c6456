"""How good answers are on uploads: edits stacked as people stack them, parts in long films, and
look-alikes, by the packaged network.

    python -m bench.quality --videos CLIPS [CLIPS ...] --out FOLDER [--test]

Three in ten clips are originals, one is shown within a film, one is other footage in uploads and
never searched, and the rest are distractors; what a clip becomes depends on its content. Long
originals are searched by their first half: the second shows the same at another time, a look-alike.
Choices are made on the validation half of the queries; `--test` asks the other half. Systems: votes
of frames, the best run of two frames of the whole picture, and the probability of the answer; the
second table says how far that can be believed.

A video that shares footage with an upload, its donor included, is neither right nor wrong for it
(`bench/shared_footage.csv`). Later halves and other takes of the same scene are left out too,
except in the row LOOK_ALIKES, where they are wrong.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.labels import FootageLabels, read_labels
from bench.table import show
from bench.uploads import (
    EASY,
    EXCERPTS,
    UPLOADS,
    Task,
    Upload,
    later_half,
    make,
    plain_pictures,
)
from hapvr.benchmark.metrics import bootstrap_interval, query_weights
from hapvr.chain import CHAIN
from hapvr.chain.step import shards_of
from hapvr.collection import add_folders
from hapvr.demo.clips_benchmark import uniform
from hapvr.demo.files import write_mp4
from hapvr.demo.user_clips import UserClip, find_clips
from hapvr.errors import VideoError
from hapvr.seeding import numpy_rng
from hapvr.steps.baseline import ensure_baseline
from hapvr.steps.searcher import Searcher
from hapvr.video.pool import in_workers
from hapvr.video.settings import SamplingConfig

Floats = NDArray[np.floating[Any]]
Scores = Mapping[str, float]
"""Video id -> score; higher is closer."""

PARTS = ("validation", "test")
"""Clips are of these in turn."""
ROLES = ("original",) * 6 + ("film",) * 2 + ("donor",) * 2 + ("distractor",) * 10
PRECISION = 0.95
SAMPLES = 500
PLAIN = 8
SYSTEMS = ("votes", "run", "answer")
LOOK_ALIKES = "all, look-alikes are wrong"
WORKERS = SamplingConfig(timeout_s=3600, max_memory_bytes=2**34)
DATA_STEPS = ("video_manifest", "videos", "frames", "whitening", "features")
INDEX_STEPS = ("frame_descriptors", "search_index")


@dataclass(frozen=True)
class Pile:
    """Videos to search in, and uploads to search for."""

    uploads: Sequence[Upload]
    contents: Mapping[str, frozenset[str]]
    """video id -> names of the clips that the video shows"""


@dataclass(frozen=True)
class Unjudged:
    """Videos that are left out of the answers to one upload, by id."""

    sharing: frozenset[str]
    """neither right nor wrong: they show some of the upload's footage"""
    look_alikes: frozenset[str]
    """the later half of the upload's original, and other takes of a scene that it shows"""


def make_pile(folders: Sequence[Path], out: Path, *, part: str) -> Pile:
    """Write the videos to search in, `out/clips`, and all uploads; those of one part are the
    queries."""
    clips = []
    for folder in folders:
        groups, _ = find_clips(folder, out=out, name="clips")
        clips += [group[0] for group in groups]

    clips.sort(key=lambda clip: uniform("own clip", clip.sha256))

    (out / "clips").mkdir(parents=True, exist_ok=True)
    tasks = plan(clips, out, part=part)
    contents: dict[str, frozenset[str]] = {}
    for task in tasks:
        contents |= task.contents()

    uploads: list[Upload] = []
    for _, result in in_workers(make, tasks, config=WORKERS):
        if isinstance(result, VideoError):
            raise result
        uploads += result

    for number, frames in enumerate(plain_pictures(PLAIN, 50, numpy_rng("plain"))):
        write_mp4(out / "clips" / f"plain-{number}.mp4", frames, fps=10)
    return Pile(uploads, contents)


def plan(clips: Sequence[UserClip], out: Path, *, part: str) -> list[Task]:
    """The role of each clip."""
    by_role: dict[str, list[Path]] = {role: [] for role in ROLES}
    for number, clip in enumerate(clips):
        by_role[ROLES[number % len(ROLES)]].append(clip.path)

    tasks = []
    for number, clip in enumerate(clips):
        role = ROLES[number % len(ROLES)]
        donors = by_role["distractor"] if role == "film" else by_role["donor"]
        count = 3 if role == "film" else 1
        others = tuple(donors[(number + place) % len(donors)] for place in range(count))
        asked = PARTS[number % len(PARTS)] == part
        tasks.append(Task(clip, role, asked, others, out))

    return tasks


def unjudged(upload: Upload, pile: Pile, labels: FootageLabels) -> Unjudged:
    """What is left out of the answers to an upload."""
    same = labels.sharing(upload.shown)
    takes = labels.retaking(upload.shown)
    later = later_half(upload.original)
    sharing = set()
    look_alikes = set()
    for video_id, clips in pile.contents.items():
        if video_id == upload.original:
            continue
        if video_id == later or (clips & takes and not clips & same):
            look_alikes.add(video_id)
        elif clips & same:
            sharing.add(video_id)

    return Unjudged(frozenset(sharing), frozenset(look_alikes))


def open_searcher(out: Path) -> Searcher:
    """An index over the pile, with the untrained baseline of the packaged network."""
    project = add_folders(out / "data", [out / "clips"])
    for name in (*DATA_STEPS, *INDEX_STEPS):
        if name == INDEX_STEPS[0]:
            ensure_baseline(project)
        for key in shards_of(project, CHAIN[name]):
            CHAIN[name].run(project, key)

    return Searcher.open(project)


def ask(searcher: Searcher, queries: Sequence[Path]) -> Iterator[dict[str, dict[str, float]]]:
    """For each system the scores of the videos that it found for each query."""
    names = [str(query) for query in queries]
    with searcher.scorer.open_videos(names, crops=True) as videos:
        for name in names:
            views = searcher.scorer.views(videos.get(name))
            shortlist = searcher.shortlist(views[0])
            of_whole, _ = searcher.score(views[0], shortlist)
            answer, _ = searcher.find(views)
            probabilities = {}
            for candidate in answer:
                probability = searcher.probability(candidate, prior=searcher.prior)
                probabilities[candidate.video_id] = probability or 0.0

            yield {
                "votes": {candidate.video_id: candidate.votes for candidate in shortlist},
                "run": {candidate.video_id: candidate.frame_run for candidate in of_whole},
                "answer": probabilities,
            }


def measures(
    found: Sequence[Scores], originals: Sequence[str], weights: Floats
) -> dict[str, Floats]:
    """mAP, micro-AP and recall at PRECISION, each [B], of queries drawn so often as `weights` [B,
    Q] say. An original that was not found has no rank."""
    query = np.repeat(np.arange(len(found)), [len(scores) for scores in found])
    score_rows = [list(scores.values()) for scores in found]
    right_rows = []
    ranks = []
    for scores, original in zip(found, originals, strict=True):
        right_rows.append([video_id == original for video_id in scores])
        ranks.append(_rank(scores, original))

    order = np.argsort(-np.concatenate(score_rows), kind="stable")
    right = np.concatenate(right_rows).astype(bool)[order]
    drawn = weights[:, query[order]]
    hits = (drawn * right).cumsum(axis=1)
    total = weights.sum(axis=1)
    precision = hits / drawn.cumsum(axis=1).clip(min=1)
    reached = np.where(precision >= PRECISION, hits, 0)
    return {
        "mAP": weights @ (1 / np.array(ranks)) / total,
        "micro-AP": (precision * drawn * right).sum(axis=1) / total,
        f"R@P{PRECISION}": reached.max(axis=1) / total,
    }


def _rank(scores: Scores, original: str) -> float:
    """The worst of ties, from 1; infinite where the original was not found."""
    if original not in scores:
        return math.inf
    return sum(score >= scores[original] for score in scores.values())


def table(
    uploads: Sequence[Upload],
    found: Sequence[Mapping[str, Scores]],
    left_out: Sequence[Unjudged],
) -> Iterator[dict[str, Any]]:
    """A row per edit and system; of all, the easy and the hard ones with intervals of 95 % over
    queries."""
    every = UPLOADS | EXCERPTS
    groups = {
        "all": set(every),
        "easy": set(EASY),
        "hard": set(every) - set(EASY),
        LOOK_ALIKES: set(every),
    }
    groups |= {edit: {edit} for edit in every}

    for name, edits in groups.items():
        rows = [number for number, upload in enumerate(uploads) if upload.edit in edits]
        if not rows:
            continue
        originals = [uploads[row].original for row in rows]
        dropped = [left_out[row].sharing for row in rows]
        if name != LOOK_ALIKES:
            dropped = [left_out[row].sharing | left_out[row].look_alikes for row in rows]
        for system in SYSTEMS:
            judged = [
                without(found[row][system], videos)
                for row, videos in zip(rows, dropped, strict=True)
            ]
            with_intervals = name in ("all", "easy", "hard", LOOK_ALIKES)
            yield {
                "edits": name,
                "queries": len(rows),
                "system": system,
                **_measured(judged, originals, with_intervals=with_intervals),
            }


def without(scores: Scores, dropped: Collection[str]) -> dict[str, float]:
    """The scores of all other videos."""
    return {video_id: score for video_id, score in scores.items() if video_id not in dropped}


def _measured(
    found: Sequence[Scores], originals: Sequence[str], *, with_intervals: bool
) -> dict[str, str]:
    """Each of `measures` in percent, as text."""
    count = len(found)
    values = measures(found, originals, np.ones((1, count)))
    cells = {measure: f"{100 * value[0]:.1f}" for measure, value in values.items()}
    if with_intervals:
        draws = query_weights(count, num_samples=SAMPLES, rng=numpy_rng("bootstrap"))
        for measure, samples in measures(found, originals, draws).items():
            low, high = bootstrap_interval(samples)
            cells[measure] += f" [{100 * low:.1f}, {100 * high:.1f}]"

    return cells


def trust(uploads: Sequence[Upload], answers: Sequence[Scores]) -> dict[str, Any]:
    """How many matches are right, how many are missed, and how many searches call something else
    likely. answers: probabilities, without unjudged videos."""
    matches = []
    likely_wrong = []
    for upload, probabilities in zip(uploads, answers, strict=True):
        wrong = without(probabilities, {upload.original})
        likely_wrong.append(any(p >= 0.9 for p in wrong.values()))
        matches += [
            video_id == upload.original for video_id, p in probabilities.items() if p >= PRECISION
        ]

    return {
        "matches": len(matches),
        "precision": float(np.mean(matches)) if matches else float("nan"),
        "recall": sum(matches) / len(uploads),
        "wrong at 0.9": float(np.mean(likely_wrong)),
    }


def main() -> None:
    """Measures and prints two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--videos", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--test", action="store_true", help="ask the queries that no choice is made on"
    )
    options = parser.parse_args()
    part = "test" if options.test else "validation"

    pile = make_pile(options.videos, options.out, part=part)
    paths = [upload.path for upload in pile.uploads]
    scores_of = list(ask(open_searcher(options.out), paths))
    (options.out / f"found-{part}.json").write_text(json.dumps(scores_of), encoding="utf-8")

    labels = read_labels()
    left_out = [unjudged(upload, pile, labels) for upload in pile.uploads]
    show(list(table(pile.uploads, scores_of, left_out)))

    answers = []
    for scores, dropped in zip(scores_of, left_out, strict=True):
        answers.append(without(scores["answer"], dropped.sharing | dropped.look_alikes))
    show([trust(pile.uploads, answers)])


if __name__ == "__main__":
    main()
