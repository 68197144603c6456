"""A labelled copy benchmark from unlabelled clips: edited copies of some are to be found among copies of the others.

A query's copies are ND or DS by their edit; every other video of the database is a negative. The clips should therefore
differ: two recordings of one event, or one clip cut from another, would count against a method that finds them.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from hapvr.benchmark.definition import LABEL_SCHEMA, VIDEO_SCHEMA
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.definitions.clips import is_complete, write_clips
from hapvr.benchmark.segments import SEGMENT_SCHEMA
from hapvr.corpus.edits import (
    EDITS,
    HARD_EDITS,
    LIGHT_EDITS,
    PART_EDITS,
    PART_LENGTHS_S,
    STRONG_EDITS,
    edit_rows,
    edit_video,
    find_edit,
)
from hapvr.corpus.output import prepare_folder, write_mp4
from hapvr.corpus.timeline import Times, true_times
from hapvr.corpus.user_clips import UnusableFile, UserClip, find_clips, load_frames, without_repeats
from hapvr.errors import ArgumentError, DamagedError, DataError, VideoError
from hapvr.files import read_json_as, write_atomic
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.seeding import numpy_rng
from hapvr.video.pool import in_workers
from hapvr.video.settings import CopyEdits, SamplingConfig

GENERATOR_VERSION = 2
COPIES_TIMEOUT_S = 3600.0
COPIES_PER_CLIP = 4
MAX_QUERIES = 100
DISTRACTOR_RATE = 0.25
TIMES_FOLDER = "times"
_MAX_COPIES = 2 * len(LIGHT_EDITS)


@dataclass(frozen=True)
class CopyBenchmark:
    """A `clips` benchmark on disk, and the input files that are not in it, with the reason.

    num_segments: stretches of queries that its copies show.
    """

    folder: Path
    num_queries: int
    num_database: int
    num_segments: int
    unusable: tuple[UnusableFile, ...]


@dataclass(frozen=True)
class CopyTask:
    """Copies of one clip that are to be made in the folder `videos`.

    donor: the clip that is shown beside it by the edits that combine two videos; None if `kinds` has no such edit.
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
    copies_per_clip: int = COPIES_PER_CLIP,
    edits: CopyEdits = "usual",
    distractor_rate: float = DISTRACTOR_RATE,
    max_queries: int = MAX_QUERIES,
    seed: int = 0,
    workers: int = 2,
    progress: Progress = no_progress,
) -> CopyBenchmark:
    """Make a benchmark in `out` from all clips below `videos`, or leave it alone where it is complete.

    name: first part of the video ids. copies_per_clip: 1 to 14 edited copies of each query, half of them ND; with the hard
    edits each query gets one copy of each, with parts one of each length that it is longer than.
    distractor_rate: part of the clips, in [0, 1), that are no queries. Which clips and which edits depends on the
    clips' content and `seed` alone. progress: counts queries. Raises DataError for fewer than two different clips that
    can be decoded, ArgumentError for a number out of range.
    """
    if not 0 <= distractor_rate < 1:
        raise ArgumentError(f"distractor_rate: got {distractor_rate}; wanted at least 0 and less than 1")
    found = find_clips(videos, out=out, name=name, workers=workers)
    groups = sorted(without_repeats(found.clips), key=lambda group: group[0].draw(seed))
    if len(groups) < 2:
        raise DataError(
            f"benchmark {name}: {len(groups)} different decodable clips in {videos} ({len(found.unusable)} unusable "
            "files); wanted at least 2, so that a copy can be told from something else; add clips"
        )
    num_queries = max(round(len(groups) * (1 - distractor_rate)), 1)
    made = build_benchmark(
        out,
        name=name,
        queries=groups[:num_queries],
        distractors=groups[num_queries:],
        donors=[group[0] for group in groups[num_queries:]],
        copies_per_clip=copies_per_clip,
        edits=edits,
        max_queries=max_queries,
        seed=seed,
        workers=workers,
        progress=progress,
    )
    return replace(made, unusable=found.unusable + made.unusable)


def build_benchmark(
    folder: Path,
    *,
    name: str,
    queries: Sequence[Sequence[UserClip]],
    distractors: Sequence[Sequence[UserClip]],
    donors: Sequence[UserClip],
    copies_per_clip: int,
    edits: CopyEdits,
    max_queries: int,
    seed: int,
    workers: int,
    progress: Progress,
) -> CopyBenchmark:
    """As `make_clips_benchmark`, with the roles given.

    queries, distractors: groups of identical files; the first of a query's group is the query, the others are ND.
    Queries beyond `max_queries` become distractors. donors: clips for the edits that combine two videos. None of them
    may be a query, since its footage in another query's copy would count as a false match; without donors there are no
    such edits. Raises DataError if no query can be decoded.
    """
    if not 1 <= copies_per_clip <= _MAX_COPIES:
        raise ArgumentError(f"copies_per_clip: got {copies_per_clip}; wanted 1 to {_MAX_COPIES}")
    if max_queries < 1:
        raise ArgumentError(f"max_queries: got {max_queries}; wanted at least 1")
    distractors = [*queries[max_queries:], *distractors]
    queries = queries[:max_queries]
    tasks = [_task(group[0], donors, folder / "videos", copies_per_clip, edits, seed) for group in queries]
    files = {
        f"{role}:{clip.file}": clip.sha256
        for role, groups in (("query", queries), ("distractor", distractors))
        for group in groups
        for clip in group
    }
    settings = {"generator_version": GENERATOR_VERSION, "name": name, "copies_per_clip": copies_per_clip, "seed": seed}
    provenance = Provenance(
        "copy_benchmark",
        settings if edits == "usual" else settings | {"edits": edits},
        files | {f"donor:{task.clip.file}": task.donor.sha256 for task in tasks if task.donor is not None},
        environment(),
    )
    prepare_folder(folder, fingerprint=provenance.fingerprint)
    if not is_complete(folder):
        failures: dict[str, tuple[str, str]] = {}
        limits = SamplingConfig(workers=workers, timeout_s=COPIES_TIMEOUT_S)
        for done, (task, failure) in enumerate(in_workers(make_copies, tasks, config=limits), start=1):
            if isinstance(failure, VideoError):
                failures[task.clip.file] = (failure.reason, str(failure))
            progress(done, len(tasks))
        usable = [group for group in queries if group[0].file not in failures]
        if not usable:
            reasons = "; ".join(message for _, message in failures.values())
            raise DataError(
                f"benchmark {name}: none of its {len(queries)} queries can be decoded: {reasons}; add clips"
            )
        for clip in (clip for group in (*usable, *distractors) for clip in group):
            _place(clip, folder / "videos" / original_file(clip))
        table, labels, segments = _tables(usable, distractors, tasks, name=name)
        if labels.is_empty():
            raise DataError(
                f"benchmark {name}: no query has a copy; parts need queries that are longer and a clip that is none"
            )
        facts = {**json.loads(provenance.to_json()), "unusable": failures}
        write_clips(folder, name=name, videos=table, labels=labels, segments=segments, provenance=facts)
        shutil.rmtree(folder / TIMES_FOLDER)
    return _read_made(folder, queries)


def original_file(clip: UserClip) -> str:
    """Where a clip itself lies below `videos/`."""
    return f"originals/{clip.file}"


def copy_file(clip: UserClip, kind: str) -> str:
    """Where a clip's edited copy lies below `videos/`."""
    return f"copies/{kind}/{clip.file}.mp4"


def make_copies(task: CopyTask) -> None:
    """Decode a clip, edit it and encode the copies that are missing. Raises VideoError if it cannot be decoded.

    Writes the true times of all copies beside them, see `_times_file`.
    """
    missing = [kind for kind in task.kinds if not (task.videos / copy_file(task.clip, kind)).is_file()]
    times_file = _times_file(task)
    if not missing and times_file.is_file():
        return
    frames, fps = load_frames(task.clip.path)
    donor = frames if task.donor is None else load_frames(task.donor.path)[0]
    times = {}
    for kind in task.kinds:
        rows = edit_rows(kind, len(frames), num_donor=len(donor), fps=fps, rng=_copy_rng(task, kind))
        times[kind] = true_times(rows, fps=fps)
    with write_atomic(times_file) as part:
        part.write_text(json.dumps(times), encoding="utf-8")
    for kind in missing:
        edited = edit_video(kind, frames, donor=donor, fps=fps, rng=_copy_rng(task, kind))
        write_mp4(task.videos / copy_file(task.clip, kind), edited, fps=fps, crf=find_edit(kind).crf)


def _copy_rng(task: CopyTask, kind: str) -> np.random.Generator:
    return numpy_rng(task.seed, "copy", task.clip.sha256, kind)


def _times_file(task: CopyTask) -> Path:
    """True times of a clip's copies, by kind, until the benchmark is complete."""
    return task.videos.parent / TIMES_FOLDER / f"{task.clip.sha256}.json"


def _task(
    clip: UserClip, donors: Sequence[UserClip], videos: Path, copies_per_clip: int, edits: CopyEdits, seed: int
) -> CopyTask:
    """Draw different edits for one clip, half of them light, or take all hard ones or parts; and the donor if one needs it.

    Other donors leave the draw of a clip as it is, unless they are preferred to its own.
    """
    rng = numpy_rng(seed, "kinds", clip.sha256)
    if edits == "hard":
        kinds = tuple(kind for kind in HARD_EDITS if donors or not HARD_EDITS[kind].combines)
    elif edits == "parts":
        kinds = tuple(
            kind
            for kind, length_s in zip(PART_EDITS, PART_LENGTHS_S, strict=True)
            if donors and length_s < (clip.duration_s or math.inf)
        )
    else:
        strong = STRONG_EDITS if donors else [kind for kind in STRONG_EDITS if not EDITS[kind].combines]
        light = rng.permutation(LIGHT_EDITS)[: copies_per_clip // 2]
        kinds = (*light, *rng.permutation(strong)[: copies_per_clip - copies_per_clip // 2])
    donor = None
    if any(find_edit(kind).combines for kind in kinds):
        donor = min(donors, key=lambda other: numpy_rng(seed, "donor", clip.sha256, other.sha256).uniform())
    return CopyTask(clip, donor, videos, tuple(str(kind) for kind in kinds), seed)


def _place(clip: UserClip, target: Path) -> None:
    """Link the user's file into the benchmark, or copy it where the file system cannot link."""
    with write_atomic(target) as part:
        try:
            os.link(clip.path.resolve(), part)
        except OSError:
            shutil.copyfile(clip.path, part)


def _tables(
    queries: Sequence[Sequence[UserClip]],
    distractors: Sequence[Sequence[UserClip]],
    tasks: Sequence[CopyTask],
    *,
    name: str,
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """videos.parquet, labels.parquet and segments.parquet of the benchmark."""
    tasks_of = {task.clip.file: task for task in tasks}
    rows: list[tuple[str, str, str, str, str]] = []
    labels: list[tuple[str, str, str]] = []
    segments: list[tuple[str, str, float, float, float, float]] = []

    def add(file: str, *, role: str, clip: UserClip, edit: str) -> str:
        rows.append((f"{name}/{file}", f"videos/{file}", role, clip.file, edit))
        return rows[-1][0]

    for first, *repeats in queries:
        query = add(original_file(first), role="query", clip=first, edit="none")
        task = tasks_of[first.file]
        times = read_json_as(_times_file(task), dict[str, list[Times]], remedy="remove the folder")
        if absent := set(task.kinds) - times.keys():
            raise DamagedError(f"{_times_file(task)} is damaged (it has no {min(absent)!r}); remove the folder")
        for kind in task.kinds:
            copy = add(copy_file(first, kind), role="database", clip=first, edit=kind)
            labels.append((query, copy, find_edit(kind).label))
            segments += [(query, copy, *stretch) for stretch in times[kind]]
        for repeat in repeats:
            copy = add(original_file(repeat), role="database", clip=first, edit="same_file")
            labels.append((query, copy, "ND"))
            if first.duration_s:
                segments.append((query, copy, 0.0, first.duration_s, 0.0, first.duration_s))
    for clip in (clip for group in distractors for clip in group):
        add(original_file(clip), role="database", clip=clip, edit="none")
    return (
        pl.DataFrame(rows, schema=VIDEO_SCHEMA, orient="row"),
        pl.DataFrame(labels, schema=LABEL_SCHEMA, orient="row"),
        pl.DataFrame(segments, schema=SEGMENT_SCHEMA, orient="row"),
    )


def _read_made(folder: Path, queries: Sequence[Sequence[UserClip]]) -> CopyBenchmark:
    definition = load_definition(folder)
    failures = definition.provenance["unusable"]
    if not isinstance(failures, dict):
        raise DataError(f"{folder / 'benchmark.json'}: provenance.unusable is {failures!r}; remove the folder")
    unusable = tuple(
        UnusableFile(clip.path, *failures[group[0].file])
        for group in queries
        for clip in group
        if group[0].file in failures
    )
    num_segments = 0 if definition.segments is None else len(definition.segments)
    return CopyBenchmark(folder, len(definition.queries), len(definition.database), num_segments, unusable)
