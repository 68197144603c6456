"""A labelled copy benchmark from unlabelled clips: edited copies of some are to be found among copies of the others.

A query's copies are ND or DS by their edit; every other video of the database is a negative. The clips should therefore
differ: two recordings of one event, or one clip cut from another, would count against a method that finds them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl

from hapvr.benchmark.definition import LABEL_SCHEMA, VIDEO_SCHEMA, BenchmarkDefinition
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.definitions.clips import is_complete, write_clips
from hapvr.benchmark.segments import SEGMENT_SCHEMA
from hapvr.demo.edits import (
    ALL_EDITS,
    EDITS,
    HARD_EDITS,
    LIGHT_EDITS,
    PART_EDITS,
    PART_LENGTHS_S,
    STRONG_EDITS,
    edit_rows,
    edit_video,
)
from hapvr.demo.output import prepare_folder, write_mp4
from hapvr.demo.scene import Pixels
from hapvr.demo.timeline import Times, true_times
from hapvr.errors import ArgumentError, DataError, VideoError
from hapvr.files import write_atomic
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.seeding import numpy_rng
from hapvr.video.container import probe_video
from hapvr.video.decode import sample_frames
from hapvr.video.pool import in_workers, inspect_videos
from hapvr.video.settings import CopyEdits, SamplingConfig
from hapvr.video.sources import path_of_text, scan_folder

GENERATOR_VERSION = 2
COPIES_TIMEOUT_S = 3600.0
DISTRACTOR_RATE = 0.25
MAX_NAME_BYTES = 246
MAX_PATH_BYTES = 1000
MAX_SECONDS = 60.0
MAX_FRAMES = 600
MAX_FPS = 10.0
MAX_SHORT_SIDE_PX = 240
MIN_SHORT_SIDE_PX = 64


@dataclass(frozen=True)
class UserClip:
    """A decodable file. file: its name in ids, the path below the folder that was searched, or a digest of a long one.

    duration_s: as the container says; None where it does not.
    """

    path: Path
    file: str
    sha256: str
    duration_s: float | None = None

    @property
    def original(self) -> str:
        """Where the clip itself lies below `videos/` of a benchmark."""
        return f"originals/{self.file}"

    def copy(self, kind: str) -> str:
        """Where an edited copy lies below `videos/`."""
        return f"copies/{kind}/{self.file}.mp4"

    def draw(self, seed: int) -> float:
        """A number in [0, 1) that depends on content and seed only, so that renamed and identical files draw alike."""
        return float(numpy_rng(seed, "own clip", self.sha256).uniform())


Clips = Sequence[UserClip]
"""Files with identical bytes; mostly one."""


Unusable = dict[Path, str]
"""Files that give no frames, and the short code of their VideoError."""


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Which copies a benchmark has. per_clip: 1 to 14 usual ones of each query, half of them ND; with the hard edits each
    query gets one copy of each, with parts one of each length that it is longer than. max_queries: others are distractors."""

    edits: CopyEdits = "usual"
    per_clip: int = 4
    max_queries: int = 100
    seed: int = 0


@dataclass(frozen=True)
class CopyTask:
    """Copies of one clip that are to be made in the folder `videos`.

    donor: the clip that edits combining two videos show with it; None if `kinds` has no such edit.
    """

    clip: UserClip
    donor: UserClip | None
    videos: Path
    kinds: tuple[str, ...]
    seed: int


def make_clips_benchmark(
    videos: Path,
    out: Path,
    *,
    name: str,
    copies_per_clip: int = 4,
    edits: CopyEdits = "usual",
    distractor_rate: float = DISTRACTOR_RATE,
    seed: int = 0,
    workers: int = 2,
    progress: Progress = no_progress,
) -> tuple[BenchmarkDefinition, Unusable]:
    """Make a benchmark in `out` from all clips below `videos`, or leave it alone where it is complete.

    name: first part of the video ids. copies_per_clip, edits: see `Copies`. distractor_rate: part of the clips, in [0, 1),
    that are not queries. Which clips and which edits depends on the clips' content and `seed` alone. progress: counts
    queries. Raises DataError for fewer than two different clips that can be decoded.
    """
    groups, unusable = find_clips(videos, out=out, name=name, workers=workers)
    groups = sorted(groups, key=lambda group: group[0].draw(seed))
    if len(groups) < 2:
        raise DataError(
            f"benchmark {name}: {len(groups)} different decodable clips in {videos} ({len(unusable)} unusable "
            "files); wanted at least 2, so that a copy can be told from something else; add clips"
        )
    num_queries = max(round(len(groups) * (1 - distractor_rate)), 1)
    made, failed = build_benchmark(
        out,
        name=name,
        queries=groups[:num_queries],
        distractors=groups[num_queries:],
        donors=[group[0] for group in groups[num_queries:]],
        copies=Copies(edits=edits, per_clip=copies_per_clip, seed=seed),
        workers=workers,
        progress=progress,
    )
    return made, unusable | failed


def build_benchmark(
    folder: Path,
    *,
    name: str,
    queries: Sequence[Clips],
    distractors: Sequence[Clips],
    donors: Sequence[UserClip],
    copies: Copies,
    workers: int = 2,
    progress: Progress = no_progress,
) -> tuple[BenchmarkDefinition, Unusable]:
    """As `make_clips_benchmark`, with the roles given.

    queries, distractors: groups of identical files; the first of a query's group is the query, the others are ND.
    donors: clips for the edits that combine two videos. None of them may be a query, since its footage in another query's
    copy would count as a false match; without donors there are no such edits. Raises DataError if no query can be decoded.
    """
    distractors = [*queries[copies.max_queries :], *distractors]
    queries = queries[: copies.max_queries]
    tasks = [_task(group[0], donors, folder / "videos", copies) for group in queries]
    files = {
        f"{role}:{clip.file}": clip.sha256
        for role, groups in (("query", queries), ("distractor", distractors))
        for group in groups
        for clip in group
    }
    settings = {"generator_version": GENERATOR_VERSION, "name": name, "copies_per_clip": copies.per_clip}
    settings |= {"seed": copies.seed} | ({} if copies.edits == "usual" else {"edits": copies.edits})
    provenance = Provenance(
        "copy_benchmark",
        settings,
        files | {f"donor:{task.clip.file}": task.donor.sha256 for task in tasks if task.donor is not None},
        environment(),
    )
    prepare_folder(folder, fingerprint=provenance.fingerprint)
    if not is_complete(folder):
        times, failures = _make_all(tasks, workers=workers, progress=progress)
        usable = [group for group in queries if group[0].file in times]
        if not any(times.values()):
            raise DataError(
                f"benchmark {name}: none of its {len(queries)} queries has a copy; parts need queries that are longer and a "
                f"clip that is none; add clips. {'; '.join(message for _, message in failures.values())}"
            )
        for clip in (clip for group in (*usable, *distractors) for clip in group):
            _place(clip, folder / "videos" / clip.original)
        videos, labels, segments = _tables(usable, distractors, times, name=name)
        metadata = {**json.loads(provenance.to_json()), "unusable": failures}
        write_clips(folder, name=name, videos=videos, labels=labels, segments=segments, provenance=metadata)
    definition = load_definition(folder)
    failed: Any = definition.provenance["unusable"]
    return definition, {
        clip.path: failed[group[0].file][0] for group in queries for clip in group if group[0].file in failed
    }


def _make_all(
    tasks: Sequence[CopyTask], *, workers: int, progress: Progress
) -> tuple[dict[str, dict[str, list[Times]]], dict[str, tuple[str, str]]]:
    """By file: the true times of the copies that were made, and reason and message of clips that cannot be decoded."""
    times, failures = {}, {}
    limits = SamplingConfig(workers=workers, timeout_s=COPIES_TIMEOUT_S)
    for done, (task, result) in enumerate(in_workers(make_copies, tasks, config=limits), start=1):
        if isinstance(result, VideoError):
            failures[task.clip.file] = (result.reason, str(result))
        else:
            times[task.clip.file] = result
        progress(done, len(tasks))
    return times, failures


def find_clips(videos: Path, *, out: Path, name: str, workers: int = 2) -> tuple[list[list[UserClip]], Unusable]:
    """Groups of identical decodable files below `videos`, in the order of first appearance, and the files that do not decode;
    each is tried in a worker process, and `scan_folder` says which files those are.

    name: of the source, for messages. Raises DataError if the folder is missing or holds no videos, ArgumentError if
    `out`, where the results go, lies inside it: the next call would take the results for input.
    """
    if out.resolve().is_relative_to(videos.resolve()):
        raise ArgumentError(f"out: {out} lies inside the folder of clips {videos}; choose a folder outside of it")
    items = [(entry.video_id, path_of_text(entry.uri)) for entry in scan_folder(videos, source=name).entries]
    groups: dict[str, list[UserClip]] = {}
    unusable: Unusable = {}
    for found in inspect_videos(items, config=SamplingConfig(workers=workers)):
        if found.reason:
            unusable[found.path] = found.reason
        else:
            duration_s = None if found.probe is None else found.probe.duration_s
            clip = UserClip(found.path, _file_name(found.video_id.removeprefix(f"{name}/")), found.sha256, duration_s)
            groups.setdefault(clip.sha256, []).append(clip)
    return list(groups.values()), unusable


def _file_name(name: str) -> str:
    """The name below a benchmark's folder, where longer paths and suffixes are put around it."""
    parts = name.encode().split(b"/")
    if len(name.encode()) <= MAX_PATH_BYTES and max(len(part) for part in parts) <= MAX_NAME_BYTES:
        return name
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest() + PurePosixPath(name).suffix[:16]


def load_frames(path: Path) -> tuple[Pixels, float]:
    """Frames [1 <= N <= MAX_FRAMES, H, W, 3] of the first minute, and their rate per second. Raises VideoError.

    The short side is between MIN_SHORT_SIDE_PX and MAX_SHORT_SIDE_PX; the rate is lower for longer clips.
    """
    probe = probe_video(path)
    seconds = min(probe.duration_s or MAX_SECONDS, MAX_SECONDS)
    fps = min(MAX_FPS, MAX_FRAMES / seconds) if seconds > 0 else MAX_FPS
    short_side_px = min(max(min(probe.width_px, probe.height_px), MIN_SHORT_SIDE_PX), MAX_SHORT_SIDE_PX)
    return sample_frames(path, fps=fps, short_side_px=short_side_px, max_frames=MAX_FRAMES).frames, fps


def make_copies(task: CopyTask) -> dict[str, list[Times]]:
    """Decode a clip, edit it and encode the copies that are missing. Returns the true times of all copies by kind.

    Raises VideoError if the clip cannot be decoded.
    """
    frames, fps = load_frames(task.clip.path)
    donor = frames if task.donor is None else load_frames(task.donor.path)[0]
    times = {}
    for kind in task.kinds:
        draw = (task.seed, "copy", task.clip.sha256, kind)
        rows = edit_rows(kind, len(frames), num_donor=len(donor), fps=fps, rng=numpy_rng(*draw))
        times[kind] = true_times(rows, fps=fps)
        path = task.videos / task.clip.copy(kind)
        if not path.is_file():
            edited = edit_video(kind, frames, donor=donor, fps=fps, rng=numpy_rng(*draw))
            write_mp4(path, edited, fps=fps, crf=ALL_EDITS[kind].crf)
    return times


def _task(clip: UserClip, donors: Sequence[UserClip], videos: Path, copies: Copies) -> CopyTask:
    """Draw different edits for one clip, half of them light, or take all hard ones or parts; and the donor if one needs it.

    Other donors leave the draw of a clip as it is, unless they are preferred to its own.
    """
    if copies.edits == "hard":
        kinds = list(HARD_EDITS)
    elif copies.edits == "parts":
        lengths = zip(PART_EDITS, PART_LENGTHS_S, strict=True)
        kinds = [kind for kind, length_s in lengths if length_s < (clip.duration_s or math.inf)]
    else:
        rng = numpy_rng(copies.seed, "kinds", clip.sha256)
        strong = [kind for kind in STRONG_EDITS if donors or not EDITS[kind].combines]
        num_light = copies.per_clip // 2
        kinds = [*rng.permutation(LIGHT_EDITS)[:num_light], *rng.permutation(strong)[: copies.per_clip - num_light]]
    kinds = [str(kind) for kind in kinds if donors or not ALL_EDITS[kind].combines]
    donor = None
    if any(ALL_EDITS[kind].combines for kind in kinds):
        donor = min(donors, key=lambda one: numpy_rng(copies.seed, "donor", clip.sha256, one.sha256).uniform())
    return CopyTask(clip, donor, videos, tuple(kinds), copies.seed)


def _place(clip: UserClip, target: Path) -> None:
    """Link the user's file into the benchmark, or copy it where the file system cannot link."""
    with write_atomic(target) as part:
        try:
            os.link(clip.path.resolve(), part)
        except OSError:
            shutil.copyfile(clip.path, part)


def _tables(
    queries: Sequence[Clips],
    distractors: Sequence[Clips],
    times: Mapping[str, Mapping[str, Sequence[Times]]],
    *,
    name: str,
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """videos.parquet, labels.parquet and segments.parquet of the benchmark."""
    rows, labels, segments = [], [], []
    for first, *repeats in queries:
        query = f"{name}/{first.original}"
        rows.append((query, f"videos/{first.original}", "query", first.file, "none"))
        whole = [(0.0, first.duration_s, 0.0, first.duration_s)] if first.duration_s else []
        for file, edit, label, stretches in (
            *((first.copy(kind), kind, ALL_EDITS[kind].label, shown) for kind, shown in times[first.file].items()),
            *((repeat.original, "same_file", "ND", whole) for repeat in repeats),
        ):
            rows.append((f"{name}/{file}", f"videos/{file}", "database", first.file, edit))
            labels.append((query, f"{name}/{file}", label))
            segments += [(query, f"{name}/{file}", *stretch) for stretch in stretches]
    for clip in (clip for group in distractors for clip in group):
        rows.append((f"{name}/{clip.original}", f"videos/{clip.original}", "database", clip.file, "none"))
    return (
        pl.DataFrame(rows, schema=VIDEO_SCHEMA, orient="row"),
        pl.DataFrame(labels, schema=LABEL_SCHEMA, orient="row"),
        pl.DataFrame(segments, schema=SEGMENT_SCHEMA, orient="row"),
    )
