"""How many pairs of copies `hapvr duplicates` finds in a collection that holds nine edits of some
clips, how many of its pairs are wrong, and which copy it keeps.

    python -m bench.duplicates --videos CLIPS [CLIPS ...] --out FOLDER [--fitted]

The originals are from the half of the clips on which the shipped probability was not fitted, or
from the other half (`bench.calibration`). Pairs of the kind `same_incident` claim no footage in
common, so they count as not found. Videos that share footage by accident
(`bench/shared_footage.csv`), and an edit and the clip that it is combined with, are neither right
nor wrong; other takes of one scene are wrong.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from bench.calibration import halves
from bench.labels import FootageLabels, read_labels
from bench.quality import WORKERS, open_searcher
from bench.table import show
from hapvr.chain import CHAIN
from hapvr.chain.step import shards_of
from hapvr.demo.clips_benchmark import CopyTask, make_copies, uniform
from hapvr.demo.user_clips import UserClip, find_clips
from hapvr.errors import VideoError
from hapvr.search.duplicates import GroupMember
from hapvr.steps.duplicate_groups import make_duplicate_groups
from hapvr.steps.duplicate_pairs import duplicate_pairs
from hapvr.steps.project import Project
from hapvr.video.pool import in_workers

EASY = ("low_bitrate", "logo", "crop", "color", "text")
HARD = ("crop_hue_contrast", "flip_blur_pad", "fast_grey_noise", "picture_in_picture")
EDITS = (*EASY, *HARD)
ORIGINAL = "original"
NUM_ORIGINALS = 35
MIN_SECONDS = 5.0
PRECISION = 0.99
SOURCE = "clips"

Pair = tuple[str, str]


@dataclass(frozen=True)
class Video:
    """A video of the collection."""

    clip: str
    """name of the clip that it is, or an edit of"""
    kind: str
    """ORIGINAL, or the edit"""
    shows: frozenset[str]
    """names of all clips of which it shows something"""


def all_clips(folders: Sequence[Path], out: Path) -> list[UserClip]:
    """One file of each content, in an order that depends only on the contents."""
    clips = []
    for folder in folders:
        groups, _ = find_clips(folder, out=out, name=SOURCE)
        clips += [group[0] for group in groups]

    return sorted(clips, key=lambda clip: uniform("duplicates", clip.sha256))


def copy_tasks(clips: Sequence[UserClip], *, fitted: bool) -> list[CopyTask]:
    """The originals, each with the clip that its picture in picture stands in.

    fitted: whether they are of the half that the shipped probability was fitted on
    """
    is_fitted = halves(clips, read_labels())
    originals: list[UserClip] = []
    donors: list[UserClip] = []
    for clip, is_of_fitted in zip(clips, is_fitted, strict=True):
        is_suitable = is_of_fitted == fitted and (clip.duration_s or 0) >= MIN_SECONDS
        if is_suitable and len(originals) < NUM_ORIGINALS:
            originals.append(clip)
        else:
            donors.append(clip)

    return [(clip, donors[place], EDITS) for place, clip in enumerate(originals)]


def make_collection(
    clips: Sequence[UserClip], tasks: Sequence[CopyTask], folder: Path
) -> dict[str, Video]:
    """Link all clips and write all edits into a folder; video id -> what it shows."""
    videos: dict[str, Video] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for clip in clips:
        link = folder / clip.path.name
        if not link.exists():
            link.hardlink_to(clip.path)
        name = clip.path.name
        videos[f"{SOURCE}/{name}"] = Video(name, ORIGINAL, frozenset([name]))

    for (clip, donor, edits), failure in in_workers(
        partial(make_copies, videos=folder), tasks, config=WORKERS
    ):
        if isinstance(failure, VideoError):
            raise failure
        for edit in edits:
            names = {clip.path.name, donor.path.name} if edit == HARD[-1] else {clip.path.name}
            video_id = f"{SOURCE}/{clip.place(edit)}"
            videos[video_id] = Video(clip.path.name, edit, frozenset(names))

    return videos


def is_right(first: Video, second: Video, labels: FootageLabels) -> bool | None:
    """Whether two videos are copies; None if they share footage in another way."""
    if first.clip == second.clip:
        return True
    if labels.sharing(first.shows) & labels.sharing(second.shows):
        return None
    return False


def probabilities(project: Project, out: Path) -> dict[Pair, float]:
    """Of all pairs that were stored and claim footage in common."""
    searcher = open_searcher(out)
    for key in shards_of(project, CHAIN["duplicate_pairs"]):
        CHAIN["duplicate_pairs"].run(project, key)

    pairs = duplicate_pairs(project, searcher, min_probability=0.0)
    claimed = [pair for pair in pairs if pair.kind != "same_incident"]
    return {(pair.first, pair.second): pair.probability for pair in claimed}


def least_probability(found: Mapping[Pair, float], right: Mapping[Pair, bool]) -> float:
    """The lowest probability at and above which PRECISION of the judged pairs are right."""
    hits = 0
    least = 1.0
    judged = sorted(right, key=lambda pair: -found[pair])
    for count, pair in enumerate(judged, start=1):
        hits += right[pair]
        if hits >= PRECISION * count:
            least = found[pair]

    return least


def rows(
    videos: Mapping[str, Video], found: Mapping[Pair, float], least: float, default: float
) -> Iterator[dict[str, Any]]:
    """By kind of pair, how many are found."""
    by_clip: dict[str, list[str]] = defaultdict(list)
    for video_id, video in videos.items():
        by_clip[video.clip].append(video_id)

    kinds: dict[str, list[Pair]] = defaultdict(list)
    for video_ids in by_clip.values():
        for first, second in combinations(sorted(video_ids), 2):
            edits = {videos[first].kind, videos[second].kind}
            kinds[pair_kind(edits)].append((first, second))
            if ORIGINAL not in edits:
                kinds["of all edits"].append((first, second))

    for kind, pairs in kinds.items():
        chances = [found.get(pair, 0.0) for pair in pairs]
        yield {
            "pairs": kind,
            "number": len(pairs),
            f"found at precision {PRECISION}": sum(p >= least for p in chances) / len(pairs),
            f"found at {default:g}": sum(p >= default for p in chances) / len(pairs),
        }


def pair_kind(edits: Collection[str]) -> str:
    """The kind of pair that two videos of one clip are."""
    if ORIGINAL in edits:
        return "of an edit and its original"
    num_hard = len(set(edits) & set(HARD))
    if not num_hard:
        return "of two easy edits"
    return "of two hard edits" if num_hard == len(set(edits)) else "of an easy and a hard edit"


def kept_in_groups(project: Project, out: Path, videos: Mapping[str, Video]) -> dict[str, Any]:
    """How many groups there are, how many mix clips, and what those with an original keep."""
    groups: dict[str, list[GroupMember]] = defaultdict(list)
    for member in make_duplicate_groups(project, open_searcher(out)):
        groups[member.group].append(member)

    labels = read_labels()
    num_mixed = 0
    kept: Counter[str] = Counter()
    for members in groups.values():
        shown = [videos[member.video_id] for member in members]
        judged = [is_right(first, second, labels) for first, second in combinations(shown, 2)]
        num_mixed += False in judged
        if ORIGINAL in {video.kind for video in shown}:
            named = videos[members[0].video_id].kind if members[0].keep else "none"
            kept[named if named in (ORIGINAL, "none") else "an edit"] += 1

    return {
        "groups": len(groups),
        "that mix clips": num_mixed,
        "keep the original": kept[ORIGINAL],
        "keep an edit beside it": kept["an edit"],
        "name none": kept["none"],
    }


def options_of(usage: str | None) -> argparse.Namespace:
    """The arguments of a benchmark of edits of clips. usage: --help prints its first paragraph."""
    parser = argparse.ArgumentParser(description=(usage or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--videos", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fitted", action="store_true", help="take originals of the other half")
    return parser.parse_args()


def main() -> None:
    """Makes the collection, looks for copies and prints two tables."""
    options = options_of(__doc__)
    clips = all_clips(options.videos, options.out)
    videos = make_collection(clips, copy_tasks(clips, fitted=options.fitted), options.out / SOURCE)
    project = open_searcher(options.out).project
    chances = probabilities(project, options.out)

    labels = read_labels()
    judged = {pair: is_right(videos[pair[0]], videos[pair[1]], labels) for pair in chances}
    right = {pair: verdict for pair, verdict in judged.items() if verdict is not None}
    least = least_probability(chances, right)
    default = project.config.search.min_duplicate_probability
    show(list(rows(videos, chances, least, default)))
    wrong = [pair for pair, verdict in right.items() if not verdict and chances[pair] >= default]
    named = {"least probability": least, f"wrong pairs at {default:g}": len(wrong)}
    show([named | kept_in_groups(project, options.out, videos)])


if __name__ == "__main__":
    main()
