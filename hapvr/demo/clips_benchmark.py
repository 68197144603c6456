"""Labelled copy benchmarks from a user's unlabelled clips: edited copies of some are to be found
among the others.

A query's copies are ND or DS by their edit, or a part in longer footage; every other video of the
database is a negative. The clips should therefore differ: two recordings of one event, or one clip
cut from another, would count against a method that finds them.
"""

import json
import os
import shlex
import shutil
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hapvr.benchmark.definition import is_complete, load_definition, write_clips
from hapvr.demo.edits import (
    ALL_EDITS,
    HARD_EDITS,
    IN_LONGER_FOOTAGE,
    LIGHT_EDITS,
    STRONG_EDITS,
)
from hapvr.demo.files import prepare_folder, write_mp4
from hapvr.demo.scene import SEED
from hapvr.demo.timelines import Times, true_times
from hapvr.demo.user_clips import UserClip, find_clips, load_frames
from hapvr.errors import DataError, VideoError
from hapvr.files import write_atomic
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.seeding import numpy_rng
from hapvr.video.pool import in_workers
from hapvr.video.settings import CopyEdits, OwnVideosSource, SamplingConfig
from hapvr.video.sources import ManifestEntry, text_of_path

GENERATOR_VERSION = 4
MAX_QUERIES = 100
COPIES_PER_CLIP = 4
MIN_CLIPS = 4

CopyTask = tuple[UserClip, UserClip, tuple[str, ...]]
"""A clip, the donor for edits that combine two videos, and the kinds of its copies."""


def split_user_videos(
    videos: Path,
    out: Path,
    source: OwnVideosSource,
    *,
    entries: Iterable[ManifestEntry] | None = None,
    scenes: Mapping[str, str] | None = None,
    trained: Collection[str] = (),
    progress: Progress = no_progress,
) -> tuple[list[Path], list[Path]]:
    """Assign the clips below `videos` to train, validation and test; make the benchmarks
    OUT/NAME-validation and -test.

    Returns the files to train on, including all that give no frames, and those that are queries of
    a benchmark; both sorted. Each held-out clip is a query. Its copies are COPIES_PER_CLIP usual
    edits, half of them ND, or one of each hard edit, and one in longer footage; its content alone
    decides which.

    entries: the clips, as `scan_folder` lists them; None: it is called.
    scenes: by path below `videos`, what the clip shows; clips of one scene stay in one part.
    trained: files that were trained on, and so are not held out now.
    progress: counts queries.

    A clip without a scene is a scene of its own. The assignment depends on a clip's content (for a
    named scene, on its name), so it stays when clips are added; scenes are moved, the nearest
    first, only if a part would lack its minimum (one scene to validate, one to test, two to train).
    A held-out part of a single clip borrows training clips as distractors. The edits that combine
    two videos show a clip that is held out in the other part: it is neither a query of this part
    nor trained on.

    Raises DataError for fewer than MIN_CLIPS different scenes that can be decoded."""
    scene_of = scenes or {}
    groups, unusable = find_clips(videos, out=out, name=source.name, entries=entries)
    _warn_of_unknown_clips(scene_of, videos, groups, unusable)
    by_scene = _scenes(groups, scene_of, trained)
    if len(by_scene) < MIN_CLIPS:
        raise DataError(
            f"own videos: {videos} has too few different clips or scenes, {len(by_scene)} "
            f"({len(unusable)} unusable files); training "
            f"wants at least {MIN_CLIPS}: one to validate, one to test, two to train; add "
            "clips, or search without training: "
            f"`hapvr index add {shlex.quote(str(videos))}`"
        )

    num_test, num_validation = held_out_counts(
        [scene.draw for scene in by_scene],
        validation_rate=source.validation_rate,
        test_rate=source.test_rate,
    )
    test = _groups_of(by_scene[:num_test])
    validation = _groups_of(by_scene[num_test : num_test + num_validation])
    train = _groups_of(by_scene[num_test + num_validation :])

    for part, held_out, donors in (("test", test, validation), ("validation", validation, test)):
        unusable |= _build_benchmark(
            out / f"{source.name}-{part}",
            queries=held_out,
            distractors=train[:8] if len(held_out) == 1 else [],
            donors=[group[0] for group in donors],
            edits=source.edits,
            progress=progress,
        )

    trained_on = {clip.path for group in train for clip in group}
    queried = {clip.path for group in test + validation for clip in group}
    return sorted(trained_on | unusable), sorted(queried - unusable)


def _warn_of_unknown_clips(
    scenes: Mapping[str, str],
    videos: Path,
    groups: Iterable[Iterable[UserClip]],
    unusable: Iterable[Path],
) -> None:
    """Warn if a table of scenes names clips that do not exist."""
    present = {clip.file for group in groups for clip in group}
    present |= {str(path.relative_to(videos)) for path in unusable}
    missing = sorted(scenes.keys() - present)
    if missing:
        warnings.warn(
            f"own videos: {len(missing)} rows of the table of scenes name no clip below {videos}, "
            f"such as {missing[0]!r}; expected paths below that folder, as they are spelt there"
        )


@dataclass
class _SceneClips:
    """The clips of one scene, in groups of identical files. draw: decides what they are for."""

    draw: float
    groups: list[list[UserClip]]


def _groups_of(scenes: Iterable[_SceneClips]) -> list[list[UserClip]]:
    return [group for scene in scenes for group in scene.groups]


def _scenes(
    groups: Iterable[list[UserClip]], scenes: Mapping[str, str], trained: Collection[str]
) -> list[_SceneClips]:
    """Groups of identical files gathered by scene, with the draw of each scene in [0, 1),
    ascending. That of a scene with a file of `trained` is 1 higher, so that it is not held out."""
    gathered: dict[str, _SceneClips] = {}
    for group in groups:
        names = [scenes[clip.file] for clip in group if clip.file in scenes]
        if names:
            key = f"scene:{names[0]}"
            draw = uniform("scene", names[0])
        else:
            # By content only, so that renamed and identical files draw alike.
            key = f"sha256:{group[0].sha256}"
            draw = uniform("own clip", group[0].sha256)

        scene = gathered.setdefault(key, _SceneClips(draw, []))
        scene.groups.append(group)
        if any(text_of_path(clip.path) in trained for clip in group):
            scene.draw = 1.0 + scene.draw % 1

    return sorted(gathered.values(), key=lambda scene: scene.draw)


def held_out_counts(
    draws: Sequence[float], *, validation_rate: float, test_rate: float
) -> tuple[int, int]:
    """How many of the clips with the lowest draws are for test, and how many of the next are for
    validation. draws: at least MIN_CLIPS numbers in [0, 1), ascending. Both counts are at least 1
    and leave two clips or more."""
    room = len(draws) - 2
    num_test = sum(draw < test_rate for draw in draws)
    num_validation = sum(test_rate <= draw < test_rate + validation_rate for draw in draws)
    num_test = min(max(num_test, 1), room - 1)
    return num_test, min(max(num_validation, 1), room - num_test)


def _build_benchmark(
    folder: Path,
    *,
    queries: Sequence[Sequence[UserClip]],
    distractors: Sequence[Sequence[UserClip]],
    donors: Sequence[UserClip],
    edits: CopyEdits,
    progress: Progress,
) -> set[Path]:
    """Make a benchmark named after its folder, unless it is complete; returns queries that failed.
    queries, distractors: groups of identical files; the first of a query's group is the query, the
    others are ND. Of more than MAX_QUERIES queries the others are distractors. donors: clips, at
    least one, for the edits that combine two videos. None of them may be a query, since its footage
    in another query's copy would count as a false match. Raises DataError if no query can be
    decoded.
    """
    distractors = [*queries[MAX_QUERIES:], *distractors]
    queries = queries[:MAX_QUERIES]
    tasks = [_copy_task(query, donors, edits) for query, *_ in queries]
    provenance = _provenance(folder.name, edits, queries, distractors, tasks)
    prepare_folder(folder, fingerprint=provenance.fingerprint)
    if not is_complete(folder):
        times, failures = _make_all_copies(tasks, folder / "videos", progress)
        usable = [group for group in queries if group[0].file in times]
        if not usable:
            problems = "; ".join(failures.values())
            raise DataError(
                f"benchmark {folder.name}: no copies of its {len(queries)} queries; add "
                f"clips. {problems}"
            )

        for group in (*usable, *distractors):
            for clip in group:
                _link_or_copy(clip.path, folder / "videos" / clip.place())

        _write_definition(folder, usable, distractors, times, failures, provenance)

    failed: Any = load_definition(folder).provenance["unusable"]
    return {clip.path for group in queries for clip in group if group[0].file in failed}


def _copy_task(query: UserClip, donors: Sequence[UserClip], edits: CopyEdits) -> CopyTask:
    """What is made of a query. Other donors change no draw except where they are preferred."""
    donor = min(donors, key=lambda clip: uniform("donor", query.sha256, clip.sha256))
    return (query, donor, _kinds(query, edits))


def _provenance(
    name: str,
    edits: CopyEdits,
    queries: Sequence[Sequence[UserClip]],
    distractors: Sequence[Sequence[UserClip]],
    tasks: Sequence[CopyTask],
) -> Provenance:
    """What a benchmark is made from: the role and content of each clip."""
    files: dict[str, str] = {}
    for role, groups in (("query", queries), ("distractor", distractors)):
        for group in groups:
            files |= {f"{role}:{clip.file}": clip.sha256 for clip in group}

    for clip, donor, _ in tasks:
        files[f"donor:{clip.file}"] = donor.sha256
    settings = {"version": GENERATOR_VERSION, "name": name, "edits": edits}
    return Provenance("copy_benchmark", settings, files, environment())


def _make_all_copies(
    tasks: Sequence[CopyTask], videos: Path, progress: Progress
) -> tuple[dict[str, dict[str, list[Times]]], dict[str, str]]:
    """Make copies in worker processes. Returns by query the true times of each kind of copy, and
    why the others failed."""
    times: dict[str, dict[str, list[Times]]] = {}
    failures: dict[str, str] = {}
    limits = SamplingConfig(timeout_s=3600)
    results = in_workers(partial(make_copies, videos=videos), tasks, config=limits)
    for done, ((clip, _, _), result) in enumerate(results, start=1):
        if isinstance(result, VideoError):
            failures[clip.file] = str(result)
        else:
            times[clip.file] = result

        progress(done, len(tasks))

    return times, failures


def _link_or_copy(file: Path, place: Path) -> None:
    """A hard link needs no space, but not every file system has them."""
    with write_atomic(place) as part:
        try:
            os.link(file.resolve(), part)
        except OSError:
            shutil.copyfile(file, part)


def _write_definition(
    folder: Path,
    queries: Sequence[Sequence[UserClip]],
    distractors: Sequence[Sequence[UserClip]],
    times: Mapping[str, Mapping[str, list[Times]]],
    failures: Mapping[str, str],
    provenance: Provenance,
) -> None:
    """Write videos, labels and true times of a benchmark whose files exist."""
    videos = []
    labels = []
    segments = []
    for query, *repeats in queries:
        videos.append((query.place(), "query", query.file, "none"))
        for file, edit, label, stretches in _copies_of(query, repeats, times[query.file]):
            videos.append((file, "database", query.file, edit))
            labels.append((query.place(), file, label))
            segments += [(query.place(), file, *stretch) for stretch in stretches]

    for group in distractors:
        videos += [(clip.place(), "database", clip.file, "none") for clip in group]

    write_clips(
        folder,
        name=folder.name,
        videos=videos,
        labels=labels,
        segments=segments,
        provenance={**json.loads(provenance.to_json()), "unusable": failures},
    )


def _copies_of(
    query: UserClip, repeats: Iterable[UserClip], times: Mapping[str, list[Times]]
) -> Iterator[tuple[str, str, str, list[Times]]]:
    """File, edit, label and true times of each copy of a query; those of the same bytes last."""
    for kind, stretches in times.items():
        yield query.place(kind), kind, ALL_EDITS[kind].label, stretches
    whole = []
    if query.duration_s:
        whole.append((0.0, query.duration_s, 0.0, query.duration_s))
    for repeat in repeats:
        yield repeat.place(), "same_file", "ND", whole


def _kinds(clip: UserClip, edits: CopyEdits) -> tuple[str, ...]:
    """All hard edits, or different usual ones, half of them light; and the clip in longer
    footage."""
    if edits == "hard":
        return (*HARD_EDITS, IN_LONGER_FOOTAGE)
    rng = numpy_rng(SEED, "kinds", clip.sha256)
    light = rng.permutation(LIGHT_EDITS)[: COPIES_PER_CLIP // 2].tolist()
    strong = rng.permutation(STRONG_EDITS)[: COPIES_PER_CLIP - len(light)].tolist()
    return (*light, *strong, IN_LONGER_FOOTAGE)


def uniform(*key: str) -> float:
    """A number in [0, 1) that depends on the key alone."""
    return float(numpy_rng(SEED, *key).uniform())


def make_copies(task: CopyTask, *, videos: Path) -> dict[str, list[Times]]:
    """Decode a clip, edit it and encode the copies that are missing below `videos`. Returns the
    true times of all by kind. task: the clip, the donor for edits that combine two videos, and the
    kinds of copies. Raises RuntimeError if a clip cannot be decoded.
    """
    clip, donor_clip, kinds = task
    frames, fps = load_frames(clip.path)
    donor, _ = load_frames(donor_clip.path)
    times = {}
    for kind in kinds:
        edit = ALL_EDITS[kind]
        draw = (SEED, "copy", clip.sha256, kind)
        rows = edit.rows(len(frames), len(donor), fps, numpy_rng(*draw))
        times[kind] = true_times(rows, fps=fps)

        path = videos / clip.place(kind)
        if not path.is_file():
            edited = edit.apply(frames, donor, fps, numpy_rng(*draw))
            write_mp4(path, edited, fps=fps, crf=edit.crf)

    return times
