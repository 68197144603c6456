"""How good answers are on uploads: edits stacked as people stack them, parts in long films, and
look-alikes, by the packaged network.

    python -m bench.quality --videos CLIPS [CLIPS ...] --out FOLDER [--left-out FILE] [--test]

Three in ten clips are originals, one is shown within a film, one is other footage in uploads and
never searched, and the rest are distractors; what a clip becomes depends on its content. Long
originals are searched by their first half: the second shows the same at another time, a look-alike.
Choices are made on the validation half of the queries; `--test` asks the other half. Systems: votes
of frames, fine scores and hashes of the whole picture, and the probability of the answer; the
second table says how far that can be believed. FILE names clips that share footage with others, a
line each, which leaves them out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.table import show
from bench.uploads import EASY, EXCERPTS, UPLOADS, Task, Upload, make, plain_pictures
from hapvr.benchmark.metrics import bootstrap_interval, query_weights
from hapvr.chain import CHAIN, shards_of
from hapvr.collection import add_folders
from hapvr.demo.clips_benchmark import uniform
from hapvr.demo.files import write_mp4
from hapvr.demo.user_clips import find_clips
from hapvr.errors import VideoError
from hapvr.seeding import numpy_rng
from hapvr.steps.baseline import ensure_baseline
from hapvr.steps.searcher import Searcher
from hapvr.video.pool import in_workers
from hapvr.video.settings import SamplingConfig

Floats = NDArray[np.floating[Any]]
PARTS = ("validation", "test")
"""Clips are of these in turn."""
ROLES = (*["original"] * 6, *["film"] * 2, *["donor"] * 2, *["distractor"] * 10)
PRECISION, SAMPLES, PLAIN = 0.95, 500, 8
SYSTEMS = ("votes", "fine", "hash", "answer")
WORKERS = SamplingConfig(timeout_s=3600, max_memory_bytes=2**34)
DATA_STEPS = ("video_manifest", "videos", "frames", "whitening", "features")
INDEX_STEPS = ("frame_descriptors", "search_index")


def make_pile(
    folders: Sequence[Path], out: Path, *, left_out: frozenset[str], part: str
) -> list[Upload]:
    """Write the videos to search in, `out/clips`, and all uploads. Returns those of one part."""
    found = [find_clips(folder, out=out, name="clips")[0] for folder in folders]
    clips = [group[0] for groups in found for group in groups if group[0].path.name not in left_out]
    clips.sort(key=lambda clip: uniform("own clip", clip.sha256))
    roles = {clip.path: ROLES[number % len(ROLES)] for number, clip in enumerate(clips)}
    of = {role: [clip.path for clip in clips if roles[clip.path] == role] for role in ROLES}
    (out / "clips").mkdir(parents=True, exist_ok=True)
    tasks = []
    for number, clip in enumerate(clips):
        role = roles[clip.path]
        donors, count = (of["distractor"], 3) if role == "film" else (of["donor"], 1)
        others = tuple(donors[(number + place) % len(donors)] for place in range(count))
        tasks.append(Task(clip, role, PARTS[number % len(PARTS)] == part, others, out))
    uploads = []
    for _, made in in_workers(make, tasks, config=WORKERS):
        if isinstance(made, VideoError):
            raise made
        uploads += made
    for number, frames in enumerate(plain_pictures(PLAIN, 50, numpy_rng("plain"))):
        write_mp4(out / "clips" / f"plain-{number}.mp4", frames, fps=10)
    return uploads


def open_searcher(out: Path) -> Searcher:
    """An index over the pile, with the untrained baseline of the packaged network."""
    project = add_folders(out / "data", [out / "clips"])
    for name in (*DATA_STEPS, *INDEX_STEPS):
        if name == INDEX_STEPS[0]:
            ensure_baseline(project)
        for key in shards_of(project, CHAIN[name]):
            CHAIN[name].run(project, key)
    return Searcher.open(project)


def ask(searcher: Searcher, uploads: Sequence[Upload]) -> Iterator[dict[str, dict[str, float]]]:
    """By system the scores of videos that it found for each upload, higher is closer."""
    with searcher.scorer.open_videos(
        [str(upload.path) for upload in uploads], crops=True
    ) as videos:
        for upload in uploads:
            views = searcher.scorer.views(videos.get(str(upload.path)))
            candidates = searcher.shortlist(views[0])
            fine, _ = searcher.score(views[0], candidates)
            answer, _ = searcher.find(views)
            yield {
                "votes": {one.video_id: one.votes for one in candidates},
                "fine": {one.video_id: one.similarity for one in fine},
                "hash": {
                    one.video_id: one.candidate.num_aligned / max(one.candidate.num_asked_hashes, 1)
                    for one in fine
                },
                "answer": {
                    one.video_id: searcher.probability(one, prior=searcher.prior) or 0.0
                    for one in answer
                },
            }


def measures(
    found: Sequence[Mapping[str, float]], originals: Sequence[str], weights: Floats
) -> dict[str, Floats]:
    """mAP, micro-AP and recall at PRECISION, each [B], of queries drawn so often as `weights` [B,
    Q] say."""
    query = np.repeat(np.arange(len(found)), [len(scores) for scores in found])
    scores = np.array([score for one in found for score in one.values()])
    right = np.array(
        [name == original for one, original in zip(found, originals, strict=True) for name in one]
    )
    ranks = [
        1 + sum(score >= one[name] for other, score in one.items() if other != name)
        if name in one
        else np.inf
        for one, name in zip(found, originals, strict=True)
    ]
    order = np.argsort(-scores, kind="stable")
    drawn = weights[:, query[order]]
    hits, total = (drawn * right[order]).cumsum(axis=1), weights.sum(axis=1)
    precision = hits / drawn.cumsum(axis=1).clip(min=1)
    return {
        "mAP": weights @ (1 / np.array(ranks)) / total,
        "micro-AP": (precision * drawn * right[order]).sum(axis=1) / total,
        f"R@P{PRECISION}": np.where(precision >= PRECISION, hits, 0).max(axis=1) / total,
    }


def table(
    uploads: Sequence[Upload], found: Sequence[Mapping[str, Mapping[str, float]]]
) -> Iterator[dict[str, Any]]:
    """A row per edit and system; of all, the easy and the hard ones with intervals of 95 % over
    queries."""
    hard = {upload.edit for upload in uploads} - set(EASY)
    groups = {"all": {upload.edit for upload in uploads}, "easy": set(EASY), "hard": hard}
    groups |= {edit: {edit} for edit in (UPLOADS | EXCERPTS)}
    for name, edits in groups.items():
        rows = [number for number, upload in enumerate(uploads) if upload.edit in edits]
        for system in SYSTEMS if rows else ():
            of = [found[row][system] for row in rows], [uploads[row].original for row in rows]
            values = measures(*of, np.ones((1, len(rows))))
            row: dict[str, Any] = {"edits": name, "queries": len(rows), "system": system}
            row |= {measure: f"{100 * value[0]:.1f}" for measure, value in values.items()}
            if name in ("all", "easy", "hard"):
                draws = query_weights(len(rows), num_samples=SAMPLES, rng=numpy_rng("bootstrap"))
                for measure, samples in measures(*of, draws).items():
                    low, high = bootstrap_interval(samples)
                    row[measure] += f" [{100 * low:.1f}, {100 * high:.1f}]"
            yield row


def trust(
    uploads: Sequence[Upload], found: Sequence[Mapping[str, Mapping[str, float]]]
) -> dict[str, Any]:
    """How good what is called a match is, how much it leaves out, and how many searches call
    something else likely."""
    likely = [
        (upload.original == name, p)
        for upload, one in zip(uploads, found, strict=True)
        for name, p in one["answer"].items()
    ]
    said = [right for right, p in likely if p >= PRECISION]
    wrong = [
        any(p >= 0.9 for name, p in one["answer"].items() if name != upload.original)
        for upload, one in zip(uploads, found, strict=True)
    ]
    return {
        "matches": len(said),
        "precision": np.mean(said),
        "recall": sum(said) / len(uploads),
        "wrong at 0.9": np.mean(wrong),
    }


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--videos", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--left-out", type=Path, help="a text file with the name of a clip in each line"
    )
    parser.add_argument(
        "--test", action="store_true", help="ask the queries that no choice is made on"
    )
    options = parser.parse_args()
    names = options.left_out.read_text(encoding="utf-8").split("\n") if options.left_out else []
    part = PARTS[options.test]
    uploads = make_pile(options.videos, options.out, left_out=frozenset(names), part=part)
    found = list(ask(open_searcher(options.out), uploads))
    (options.out / f"found-{part}.json").write_text(json.dumps(found), encoding="utf-8")
    show(list(table(uploads, found)))
    show([trust(uploads, found)])


if __name__ == "__main__":
    main()
