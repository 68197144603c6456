"""Fits the probability that ships with the copy network, and checks it on clips that were not
fitted.

    python -m bench.calibration --videos CLIPS [CLIPS ...] --network FILE.onnx --out FOLDER

Half of the clips, drawn by their content, are edited by FITTED kinds of edits; the curve is fitted
on searches for them among the originals of that half. It is checked on the other half, on
edits of all kinds, in collections of ten to all clips, for queries whose original is there and for
the same queries where it is not. Clips that show the same scene are in one half, and pairs of them
do not count (`bench/shared_footage.csv`). The curve is written to FOLDER/calibration.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.copy_scores import VIEWS, CopyNetwork, Floats, Vectors, best_run, copy_scores
from bench.labels import FootageLabels, read_labels
from bench.table import show
from hapvr.demo.clips_benchmark import uniform
from hapvr.demo.edits import ALL_EDITS
from hapvr.demo.files import write_mp4
from hapvr.demo.user_clips import UserClip, find_clips, load_frames
from hapvr.scorer.calibration import fit_logistic, logit, sigmoid
from hapvr.seeding import numpy_rng
from hapvr.video.sampling import sample_frames

FITTED = (
    "low_bitrate",
    "crop",
    "text",
    "logo",
    "color",
    "letterbox",
    "tight_crop",
    "flip",
    "heavy_color",
    "blur",
    "video_in_video",
    "picture_in_picture",
    "fast_forward",
    "excerpt",
    "drop_blank",
    "compilation",
)
HELD_OUT = (
    "rescale",
    "emoji",
    "crop_hue_contrast",
    "flip_blur_pad",
    "fast_grey_noise",
    "slow_motion",
    "reverse",
    "five_seconds",
    "shuffle",
    "drop_noise",
)
EDITS_PER_CLIP = 3
CAUTION = 3
"""How many times a video that is no match counts in the fit."""

FITTED_SIZES = (10, 30, None)
CHECKED_SIZES = (10, 30, 100, None)
"""Videos in a collection; None: all clips of the half."""

MATCH = 0.95
ODDS = {"precision 1:5": 1 / 5, "precision 1:1": 1.0, "precision 5:1": 5.0}
SHORT_SIDE_PX = 256


@dataclass(frozen=True)
class Query:
    """An edited clip, compared with all clips."""

    clip: int
    """its number among the clips"""
    edit: str
    runs: Floats
    """[len(VIEWS), V], `best_run` of each view with each clip"""
    unjudged: NDArray[np.bool_]
    """[V], clips that show the same scene as the query"""


@dataclass(frozen=True)
class Search:
    """Scores of one query in one collection."""

    scores: Floats
    is_match: NDArray[np.bool_]


@dataclass(frozen=True)
class Answer:
    """The result of a curve for one search."""

    hits: int
    """matches that are called so"""
    wrong: int
    """other videos that are called a match"""
    best: float
    """the highest probability"""
    brier: float
    """squared errors, summed over the collection"""
    log_loss: float
    """likewise"""


def halves(clips: Sequence[UserClip], labels: FootageLabels) -> NDArray[np.bool_]:
    """[V], which clips are for the fit; clips that show one scene are in one half."""
    group = {clip.path.name: clip.path.name for clip in clips}
    for name in sorted(group):
        for linked in sorted(labels.sharing([name]) | labels.retaking([name])):
            if linked in group:
                joined = {group[name], group[linked]}
                group = {
                    clip: min(joined) if first in joined else first for clip, first in group.items()
                }

    digest = {clip.path.name: clip.sha256 for clip in clips}
    return np.array(
        [uniform("calibration half", digest[group[clip.path.name]]) < 0.5 for clip in clips]
    )


def sampled(path: Path) -> list[NDArray[np.uint8]]:
    """Frames at one a second, as the collection stores them."""
    frames: list[NDArray[np.uint8]] = sample_frames(
        path, fps=1.0, short_side_px=SHORT_SIDE_PX
    ).frames
    return frames


def shown_vectors(network: CopyNetwork, frames: Sequence[NDArray[np.uint8]]) -> list[Vectors]:
    """[T, 512] of each view, without frames of one colour; all frames where there are no others."""
    views = [network.vectors(frames, view) for view in VIEWS]
    shown = network.shown(views[0])
    if not shown.any():
        return views
    return [view[shown] for view in views]


def edit_clip(clip: UserClip, donor: UserClip, kind: str, out: Path) -> Path:
    """Write an edited clip, unless it exists."""
    path = out / "edits" / kind / f"{clip.sha256[:16]}.mp4"
    if not path.is_file():
        frames, fps = load_frames(clip.path)
        donor_frames, _ = load_frames(donor.path)
        edit = ALL_EDITS[kind]
        rng = numpy_rng("calibration", clip.sha256, kind)
        write_mp4(path, edit.apply(frames, donor_frames, fps, rng), fps=fps, crf=edit.crf)

    return path


def make_queries(
    clips: Sequence[UserClip],
    fitted: NDArray[np.bool_],
    labels: FootageLabels,
    network: CopyNetwork,
    out: Path,
) -> Iterator[Query]:
    """Edits of each clip: of FITTED kinds in the half for the fit, of all kinds in the other."""
    whole = [shown_vectors(network, sampled(clip.path))[0] for clip in clips]
    for number, clip in enumerate(clips):
        donor = clips[(number + len(clips) // 3) % len(clips)]
        scene = labels.sharing([clip.path.name, donor.path.name])
        scene |= labels.retaking([clip.path.name, donor.path.name])
        unjudged = np.array([other.path.name in scene for other in clips])
        unjudged[number] = False

        kinds = FITTED if fitted[number] else FITTED + HELD_OUT
        drawn = numpy_rng("calibration kinds", clip.sha256).permutation(kinds)
        for kind in drawn[:EDITS_PER_CLIP].tolist():
            views = shown_vectors(network, sampled(edit_clip(clip, donor, kind, out)))
            runs = np.array([[best_run(view, video) for video in whole] for view in views])
            yield Query(number, kind, runs, unjudged)


def searches(
    queries: Sequence[Query], pool: NDArray[np.bool_], size: int | None, *, present: bool
) -> list[Search]:
    """Each query in a collection of `size` clips of the pool, its original among them or not."""
    rng = numpy_rng("calibration collections", size or 0)
    answers = []
    others_wanted = None if size is None else size - 1
    for query in queries:
        others = pool & ~query.unjudged
        others[query.clip] = False
        collection = rng.permutation(np.flatnonzero(others))[:size]
        if present:
            collection = np.append(collection[:others_wanted], query.clip)
        answers.append(Search(copy_scores(query.runs[:, collection]), collection == query.clip))

    return answers


def fit(found: Sequence[Search]) -> tuple[float, float]:
    """Slope and intercept of the log-odds, other videos counting CAUTION times."""
    scores = np.concatenate([search.scores for search in found])
    is_match = np.concatenate([search.is_match for search in found])
    weighted = np.concatenate([scores[is_match], np.repeat(scores[~is_match], CAUTION)])
    target = np.arange(len(weighted)) < is_match.sum()
    (slope,), intercept = fit_logistic(weighted[:, None], target.astype(np.float64))
    return float(slope), intercept


def check(
    queries: Sequence[Query],
    pool: NDArray[np.bool_],
    size: int | None,
    curve: tuple[float, float],
) -> dict[str, Any]:
    """How far the probabilities can be trusted in collections of this size. The precisions of ODDS
    hold for so many searches whose original is there per search without one."""
    present = answers(searches(queries, pool, size, present=True), curve)
    absent = answers(searches(queries, pool, size, present=False), curve)
    hits = sum(answer.hits for answer in present)
    wrong = sum(answer.wrong for answer in present)
    false_alarms = sum(answer.wrong for answer in absent)
    row = {
        "videos": size or int(pool.sum()),
        "queries": len(queries),
        "recall": hits / len(queries),
        "precision": hits / max(hits + wrong, 1),
    }
    for name, odds in ODDS.items():
        called = odds * (hits + wrong) + false_alarms
        row[name] = odds * hits / called if called else float("nan")

    best = np.array([answer.best for answer in absent])
    row["absent: match"] = float(np.mean(best >= MATCH))
    row["absent: unsure"] = float(np.mean((best < MATCH) & (best > 1 - MATCH)))
    row["Brier"] = float(np.mean([answer.brier for answer in present + absent]))
    row["log loss"] = float(np.mean([answer.log_loss for answer in present + absent]))
    return row


def answers(found: Sequence[Search], curve: tuple[float, float]) -> list[Answer]:
    """The results of the curve for searches."""
    slope, intercept = curve
    judged = []
    for search in found:
        probability = sigmoid(slope * search.scores + intercept)
        is_called_match = probability >= MATCH
        of_truth = np.where(search.is_match, probability, 1 - probability)
        judged.append(
            Answer(
                hits=int((is_called_match & search.is_match).sum()),
                wrong=int((is_called_match & ~search.is_match).sum()),
                best=float(probability.max()),
                brier=float(((1 - of_truth) ** 2).sum()),
                log_loss=float(-np.log(of_truth.clip(min=1e-12)).sum()),
            )
        )

    return judged


def main() -> None:
    """Fits, writes the curve and prints the checks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--videos", type=Path, nargs="+", required=True)
    parser.add_argument("--network", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    options.out.mkdir(parents=True, exist_ok=True)
    clips: list[UserClip] = []
    for folder in options.videos:
        groups, _ = find_clips(folder, out=options.out, name="clips")
        clips += [group[0] for group in groups]

    labels = read_labels()
    fitted = halves(clips, labels)
    network = CopyNetwork(options.network)
    queries = list(make_queries(clips, fitted, labels, network, options.out))

    for_fit = [query for query in queries if fitted[query.clip]]
    fitted_searches = []
    for size in FITTED_SIZES:
        for present in (True, False):
            fitted_searches += searches(for_fit, fitted, size, present=present)

    slope, intercept = fit(fitted_searches)
    curve = {
        "slope": slope,
        "intercept": intercept,
        "match_score": (logit(MATCH) - intercept) / slope,
        "no_match_score": (logit(1 - MATCH) - intercept) / slope,
    }
    (options.out / "calibration.json").write_text(json.dumps(curve, indent=2), encoding="utf-8")

    checked = [query for query in queries if not fitted[query.clip]]
    held_out = [query for query in checked if query.edit in HELD_OUT]
    rows = [
        {"edits": "all", **check(checked, ~fitted, size, (slope, intercept))}
        for size in CHECKED_SIZES
    ]
    rows.append({"edits": "held out", **check(held_out, ~fitted, None, (slope, intercept))})
    show([curve])
    show(rows)


if __name__ == "__main__":
    main()
