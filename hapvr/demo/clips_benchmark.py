"""Labelled copy benchmarks from a user's unlabelled clips: edited copies of some are to be found
among the others.

A query's copies are ND or DS by their edit, or a part in longer footage; every other video of the
database is a negative. The clips should therefore differ: two recordings of one event, or one clip
cut from another, would count against a method that finds them.
"""

import hashlib
import io
import json
import os
import shlex
import shutil
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hapvr.benchmark.definition import is_complete, load_definition, write_clips
from hapvr.demo.corpus import prepare_folder, write_mp4
from hapvr.demo.edits import (
    ALL_EDITS,
    HARD_EDITS,
    IN_LONGER_FOOTAGE,
    LIGHT_EDITS,
    STRONG_EDITS,
    Times,
    true_times,
)
from hapvr.demo.scene import SEED, Pixels
from hapvr.errors import ArgumentError, DataError, VideoError
from hapvr.files import write_atomic
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.seeding import numpy_rng
from hapvr.video.decode import probe_video, sample_frames
from hapvr.video.pool import in_workers, sample_videos
from hapvr.video.sandbox import call_confined
from hapvr.video.settings import CopyEdits, OwnVideosSource, SamplingConfig
from hapvr.video.sources import path_of_text, scan_folder, text_of_path

GENERATOR_VERSION = 4
MAX_QUERIES = 100
MAX_SECONDS = 60.0
MAX_FRAMES = 600
MAX_FPS = 10.0
SHORT_SIDES_PX = (64, 240)
COPIES_PER_CLIP = 4
MIN_CLIPS = 4


@dataclass(frozen=True)
class UserClip:
    """A decodable file. file: its name in ids, the path below the folder that was searched, or a
    digest of a long one. duration_s: as the container says; None where it does not."""

    path: Path
    file: str
    sha256: str
    duration_s: float | None = None

    def place(self, kind: str = "none") -> str:
        """Where an edited copy lies below `videos/` of a benchmark, or the clip itself."""
        return f"originals/{self.file}" if kind == "none" else f"copies/{kind}/{self.file}.mp4"


def split_user_videos(
    videos: Path,
    out: Path,
    source: OwnVideosSource,
    *,
    files: Collection[Path] | None = None,
    scenes: Mapping[str, str] | None = None,
    trained: Collection[str] = (),
    progress: Progress = no_progress,
) -> tuple[list[Path], list[Path]]:
    """Assign the clips below `videos` to train, validation and test; make the benchmarks
    OUT/NAME-validation and -test.

    Returns the files to train on, with all that give no frames, and those that are queries of a
    benchmark; each sorted.

    Each held-out clip is a query. Its copies are COPIES_PER_CLIP usual edits, half of them ND, or
    one of each hard edit, and one in longer footage; which ones depends on its content alone.
    progress: counts queries.

    files: those that are used; None: all. scenes: by path below `videos`, what the clip shows;
    clips of one scene stay in one part, and each other clip is a scene of its own. trained: files
    that were trained on, so that they are not held out now. The assignment depends on a clip's
    content (of a named scene, on its name), so it stays when clips are added; only where a part
    would lack its minimum (one scene to validate, one to test, two to train) are the nearest scenes
    moved. A held-out part of a single clip borrows training clips as distractors. The edits that
    combine two videos show a clip that is held out in the other part: it is neither a query of this
    part nor trained on.

    Raises DataError for fewer than MIN_CLIPS different scenes that can be decoded."""
    groups, unusable = find_clips(videos, out=out, name=source.name, files=files)
    there = {clip.file for group in groups for clip in group} | {
        str(path.relative_to(videos)) for path in unusable
    }
    if lost := sorted((scenes or {}).keys() - there):
        said = (
            f"{len(lost)} rows of the table of scenes name no clip below {videos}, such "
            f"as {lost[0]!r}"
        )
        warnings.warn(
            f"own videos: {said}; wanted paths below that folder, as they are spelt there"
        )
    units = _scenes(groups, scenes or {}, trained)
    if len(units) < MIN_CLIPS:
        raise DataError(
            f"own videos: {videos} has too few different clips or scenes, {len(units)} "
            f"({len(unusable)} unusable files); training "
            f"wants at least {MIN_CLIPS}: one to validate, one to test, two to train; add "
            "clips, or search without training: "
            f"`hapvr index add {shlex.quote(str(videos))}`"
        )
    num_test, num_validation = held_out_counts(
        [draw for draw, _ in units],
        validation_rate=source.validation_rate,
        test_rate=source.test_rate,
    )
    borders = (0, num_test, num_test + num_validation, len(units))
    test, validation, train = (
        [group for _, groups in units[start:end] for group in groups]
        for start, end in pairwise(borders)
    )
    for part, held_out, other in (("test", test, validation), ("validation", validation, test)):
        unusable |= _build_benchmark(
            out / f"{source.name}-{part}",
            queries=held_out,
            distractors=train[:8] if len(held_out) == 1 else [],
            donors=[group[0] for group in other],
            edits=source.edits,
            progress=progress,
        )
    trained_on, asked = (
        {clip.path for group in part for clip in group} for part in (train, test + validation)
    )
    return sorted(trained_on | unusable), sorted(asked - unusable)


def _scenes(
    groups: Iterable[list[UserClip]], scenes: Mapping[str, str], trained: Collection[str]
) -> list[tuple[float, list[list[UserClip]]]]:
    """Groups of identical files gathered by scene, with the draw of each scene in [0, 1),
    ascending. That of a scene with a file of `trained` is 1 higher, so that it is not held out."""
    units: dict[str, tuple[float, list[list[UserClip]]]] = {}
    for group in groups:
        named = next((scenes[clip.file] for clip in group if clip.file in scenes), None)
        key = f"sha256:{group[0].sha256}" if named is None else f"scene:{named}"
        # of a clip, by content only, so that renamed and identical files draw alike
        draw = uniform("own clip", group[0].sha256) if named is None else uniform("scene", named)
        before, gathered = units.get(key, (draw, []))
        known = any(text_of_path(clip.path) in trained for clip in group)
        units[key] = (1.0 + before % 1 if known else before, [*gathered, group])
    return sorted(units.values(), key=lambda unit: unit[0])


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
    """Make a benchmark that is named after its folder, or leave it alone where it is complete;
    returns queries that failed. queries, distractors: groups of identical files; the first of a
    query's group is the query, the others are ND. Of more than MAX_QUERIES queries the others are
    distractors. donors: clips, at least one, for the edits that combine two videos. None of them
    may be a query, since its footage in another query's copy would count as a false match. Raises
    DataError if no query can be decoded.
    """
    queries, distractors = queries[:MAX_QUERIES], [*queries[MAX_QUERIES:], *distractors]
    tasks = []
    for query, *_ in queries:
        # other donors leave the draw as it is, unless they are preferred
        donor = min(donors, key=lambda one: uniform("donor", query.sha256, one.sha256))
        tasks.append((query, donor, _kinds(query, edits)))
    roles = {"query": queries, "distractor": distractors}
    files = {
        f"{role}:{clip.file}": clip.sha256
        for role in roles
        for group in roles[role]
        for clip in group
    }
    files |= {f"donor:{clip.file}": donor.sha256 for clip, donor, _ in tasks}
    settings = {"version": GENERATOR_VERSION, "name": folder.name, "edits": edits}
    provenance = Provenance("copy_benchmark", settings, files, environment())
    prepare_folder(folder, fingerprint=provenance.fingerprint)
    if not is_complete(folder):
        times: dict[str, dict[str, list[Times]]] = {}
        failures: dict[str, str] = {}
        limits = SamplingConfig(timeout_s=3600)
        copies = in_workers(partial(make_copies, videos=folder / "videos"), tasks, config=limits)
        for done, ((clip, _, _), result) in enumerate(copies, start=1):
            if isinstance(result, VideoError):
                failures[clip.file] = str(result)
            else:
                times[clip.file] = result
            progress(done, len(tasks))
        usable = [group for group in queries if group[0].file in times]
        if not usable:
            problems = "; ".join(failures.values())
            raise DataError(
                f"benchmark {folder.name}: no copies of its {len(queries)} queries; add "
                f"clips. {problems}"
            )
        videos, labels, segments = [], [], []
        for first, *repeats in usable:
            videos.append((first.place(), "query", first.file, "none"))
            whole = [(0.0, first.duration_s, 0.0, first.duration_s)] if first.duration_s else []
            for file, edit, label, stretches in (
                *(
                    (first.place(kind), kind, ALL_EDITS[kind].label, shown)
                    for kind, shown in times[first.file].items()
                ),
                *((repeat.place(), "same_file", "ND", whole) for repeat in repeats),
            ):
                videos.append((file, "database", first.file, edit))
                labels.append((first.place(), file, label))
                segments += [(first.place(), file, *stretch) for stretch in stretches]
        videos += [
            (clip.place(), "database", clip.file, "none") for group in distractors for clip in group
        ]
        for clip in (clip for group in (*usable, *distractors) for clip in group):
            with write_atomic(folder / "videos" / clip.place()) as part:
                try:
                    os.link(clip.path.resolve(), part)
                except OSError:  # the file system cannot
                    shutil.copyfile(clip.path, part)
        metadata = {**json.loads(provenance.to_json()), "unusable": failures}
        write_clips(
            folder,
            name=folder.name,
            videos=videos,
            labels=labels,
            segments=segments,
            provenance=metadata,
        )
    failed: Any = load_definition(folder).provenance["unusable"]
    return {clip.path for group in queries for clip in group if group[0].file in failed}


def _kinds(clip: UserClip, edits: CopyEdits) -> tuple[str, ...]:
    """All hard edits, or different usual ones, half of them light; and the clip in longer
    footage."""
    if edits == "hard":
        return (*HARD_EDITS, IN_LONGER_FOOTAGE)
    rng = numpy_rng(SEED, "kinds", clip.sha256)
    light = rng.permutation(LIGHT_EDITS)[: COPIES_PER_CLIP // 2].tolist()
    return (
        *light,
        *rng.permutation(STRONG_EDITS)[: COPIES_PER_CLIP - len(light)].tolist(),
        IN_LONGER_FOOTAGE,
    )


def uniform(*key: str) -> float:
    """A number in [0, 1) that depends on the key alone."""
    return float(numpy_rng(SEED, *key).uniform())


def find_clips(
    videos: Path, *, out: Path, name: str, files: Collection[Path] | None = None
) -> tuple[list[list[UserClip]], set[Path]]:
    """Groups of identical decodable files below `videos`, in the order of first appearance, and the
    files that do not decode; each is tried in a worker process, and `scan_folder` says which files
    those are. name: of the source, for messages. files: those of them that are used; None: all.
    Raises DataError if the folder is missing or holds no videos, ArgumentError if `out`, where the
    results go, lies inside it: the next call would take the results for input.
    """
    if out.resolve().is_relative_to(videos.resolve()):
        raise ArgumentError(
            f"out: {out} lies inside the folder of clips {videos}; choose a folder outside of it"
        )
    items = [
        (entry.video_id, path_of_text(entry.uri))
        for entry in scan_folder(videos, source=name, notices=files is None)
    ]
    items = [(video_id, path) for video_id, path in items if files is None or path in files]
    groups: dict[str, list[UserClip]] = {}
    unusable = set()
    for found in sample_videos(items, config=SamplingConfig(), frames=False):
        if found.reason:
            unusable.add(found.path)
            continue
        file = found.video_id.removeprefix(f"{name}/")
        encoded = file.encode()
        if (
            len(encoded) > 1000 or max(map(len, encoded.split(b"/"))) > 240
        ):  # folders and suffixes are put around it
            file = hashlib.blake2b(encoded, digest_size=16).hexdigest() + found.path.suffix[:16]
        duration_s = None if found.probe is None else found.probe.duration_s
        groups.setdefault(found.file_sha256, []).append(
            UserClip(found.path, file, found.file_sha256, duration_s)
        )
    return list(groups.values()), unusable


def load_frames(path: Path) -> tuple[Pixels, float]:
    """Frames [1 <= N <= MAX_FRAMES, H, W, 3] of the first minute, and their rate per second. The
    short side is within SHORT_SIDES_PX; the rate is lower for longer clips. Raises RuntimeError if
    the clip cannot be decoded."""
    with np.load(io.BytesIO(call_confined(partial(_saved_frames, path), readable=path))) as saved:
        return saved["frames"], float(saved["fps"])


def _saved_frames(path: Path) -> bytes:
    """Runs in the confined process."""
    probe = probe_video(path)
    seconds = min(probe.duration_s or MAX_SECONDS, MAX_SECONDS)
    fps = min(MAX_FPS, MAX_FRAMES / seconds) if seconds > 0 else MAX_FPS
    short_side_px = int(np.clip(min(probe.width_px, probe.height_px), *SHORT_SIDES_PX))
    _, frames, _ = sample_frames(path, fps=fps, short_side_px=short_side_px, max_frames=MAX_FRAMES)
    np.savez(saved := io.BytesIO(), frames=np.stack(frames), fps=fps)
    return saved.getvalue()


def make_copies(
    task: tuple[UserClip, UserClip, tuple[str, ...]], *, videos: Path
) -> dict[str, list[Times]]:
    """Decode a clip, edit it and encode the copies that are missing below `videos`. Returns the
    true times of all by kind. task: the clip, the donor for edits that combine two videos, and the
    kinds of copies. Raises RuntimeError if a clip cannot be decoded.
    """
    clip, other, kinds = task
    (frames, fps), (donor, _) = load_frames(clip.path), load_frames(other.path)
    times = {}
    for kind in kinds:
        edit, draw = ALL_EDITS[kind], (SEED, "copy", clip.sha256, kind)
        times[kind] = true_times(edit.rows(len(frames), len(donor), fps, numpy_rng(*draw)), fps=fps)
        path = videos / clip.place(kind)
        if not path.is_file():
            write_mp4(path, edit.apply(frames, donor, fps, numpy_rng(*draw)), fps=fps, crf=edit.crf)
    return times
