"""The generated demo corpus: labelled mp4 files of invented incidents, split by incident."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import polars as pl

from hapvr.benchmark.definitions.clips import is_complete, write_clips
from hapvr.benchmark.segments import SEGMENT_SCHEMA
from hapvr.corpus.camera import film, make_camera
from hapvr.corpus.edits import EDITS, INTRO_S, NORMAL_CRF, broadcast, edit_rows, edit_video
from hapvr.corpus.output import prepare_folder, write_mp4
from hapvr.corpus.plan import SPAN_S, Clip, Footage, Split, label_table, plan_split, split_incidents, video_table
from hapvr.corpus.scene import Scene, make_scene
from hapvr.corpus.textures import Pixels
from hapvr.corpus.timeline import Times, true_times
from hapvr.errors import DataError, VideoError
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.seeding import numpy_rng
from hapvr.video.pool import in_workers
from hapvr.video.settings import SamplingConfig

GENERATOR_VERSION = 2
"""Raised whenever the same arguments would give other pictures; corpora of another version are made again."""
FPS = 12.0
INCIDENT_TIMEOUT_S = 3600.0
DONOR_S = 6.0


@dataclass(frozen=True)
class DemoCorpus:
    """Folders of the three splits; the files are in `videos/` of each, validation and test are `clips` benchmarks."""

    train: Path
    validation: Path
    test: Path
    digest: str


@dataclass(frozen=True)
class IncidentTask:
    """Clips of one incident that are to be made in the folder `videos`."""

    videos: Path
    clips: tuple[Clip, ...]
    seed: int


def make_demo_corpus(
    folder: Path,
    *,
    name: str,
    num_incidents: int = 26,
    seed: int = 0,
    workers: int = 2,
    progress: Progress = no_progress,
) -> DemoCorpus:
    """Make the files of the corpus that are missing below `folder`.

    name: the splits are the folders NAME-train, NAME-validation and NAME-test. num_incidents: at least 3, of which
    about 14/26 train, 4/26 validate and 8/26 test. Equal arguments and library versions give equal bytes, whatever
    the number of worker processes. progress: counts files. Raises DataError where a folder holds something else,
    ArgumentError for a wrong number.
    """
    provenance = Provenance(
        "demo_corpus",
        {"generator_version": GENERATOR_VERSION, "name": name, "num_incidents": num_incidents, "seed": seed},
        environment=environment(),
    )
    plans = {
        split: plan_split(split, incidents=incidents, seed=seed)
        for split, incidents in split_incidents(num_incidents).items()
    }
    folders: dict[Split, Path] = {split: folder / f"{name}-{split}" for split in plans}
    for split_folder in folders.values():
        prepare_folder(split_folder, fingerprint=provenance.fingerprint)
    tasks = [
        IncidentTask(folders[split] / "videos", tuple(missing), seed)
        for split, plan in plans.items()
        for _, clips in groupby(plan, key=lambda clip: clip.footage.incident)
        if (missing := [clip for clip in clips if not (folders[split] / "videos" / clip.file).is_file()])
    ]
    total = sum(len(plan) for plan in plans.values())
    done = total - sum(len(task.clips) for task in tasks)
    progress(done, total)
    limits = SamplingConfig(workers=workers, timeout_s=INCIDENT_TIMEOUT_S)
    for task, failure in in_workers(render_incident, tasks, config=limits):
        if isinstance(failure, VideoError):
            raise DataError(f"demo corpus: {task.clips[0].footage.incident} cannot be filmed: {failure}; run it again")
        done += len(task.clips)
        progress(done, total)
    for split in ("validation", "test"):
        if not is_complete(folders[split]):
            write_clips(
                folders[split],
                name=folders[split].name,
                videos=video_table(plans[split], name=folders[split].name),
                labels=label_table(plans[split], name=folders[split].name),
                segments=_segment_table(plans[split], name=folders[split].name, seed=seed),
                provenance=json.loads(provenance.to_json()),
            )
    return DemoCorpus(folders["train"], folders["validation"], folders["test"], provenance.fingerprint)


def render_incident(task: IncidentTask) -> None:
    """Film, edit and encode the clips of a task."""
    footage = task.clips[0].footage
    scene = _scene(footage.incident, dressing=footage.dressing, seed=task.seed)
    combines = any(clip.edit != "none" and EDITS[clip.edit].combines for clip in task.clips)
    donor = _film_donor(footage.incident, dressing=footage.dressing + 1, seed=task.seed) if combines else None
    for take, clips in groupby(task.clips, key=lambda clip: clip.footage):
        frames = _take(scene, take, seed=task.seed)
        for clip in clips:
            edited, crf = _edited(clip, frames, donor=frames if donor is None else donor, seed=task.seed)
            write_mp4(task.videos / clip.file, edited, fps=FPS, crf=crf)


def _segment_table(clips: Sequence[Clip], *, name: str, seed: int) -> pl.DataFrame:
    """The true times of what copies show of their queries; footage of other cameras is no copy."""
    rows = []
    for query in (clip for clip in clips if clip.role == "query"):
        for copy in clips:
            if copy.role == "database" and copy.footage == query.footage:
                pair = (f"{name}/{query.file}", f"{name}/{copy.file}")
                rows += [(*pair, *times) for times in _copy_times(query, copy, seed=seed)]
    return pl.DataFrame(rows, schema=SEGMENT_SCHEMA, orient="row")


def _copy_times(query: Clip, copy: Clip, *, seed: int) -> list[Times]:
    frames, donor = (max(round(seconds * FPS), 1) for seconds in (query.footage.duration_s, DONOR_S))
    kind = "low_bitrate" if copy.edit == "none" else copy.edit
    drawn = edit_rows(kind, frames, num_donor=donor, fps=FPS, rng=_edit_rng(copy, seed=seed))
    starts = [0.0 if clip.channel is None else INTRO_S for clip in (query, copy)]
    return true_times(drawn, fps=FPS, original_start_s=starts[0], copy_start_s=starts[1])


def _edit_rng(clip: Clip, *, seed: int) -> np.random.Generator:
    return numpy_rng(seed, "edit", clip.file)


def _scene(incident: str, *, dressing: int, seed: int) -> Scene:
    return make_scene(seed=seed, incident=incident, dressing=dressing, duration_s=3 * SPAN_S)


def _take(scene: Scene, footage: Footage, *, seed: int) -> Pixels:
    camera = make_camera(seed=seed, incident=footage.incident, camera=footage.camera)
    name = f"{footage.incident}/{footage.camera}/{footage.start_s:.3f}"
    return film(scene, camera, start_s=footage.start_s, duration_s=footage.duration_s, fps=FPS, name=name)


def _film_donor(name: str, *, dressing: int, seed: int) -> Pixels:
    """A few seconds of an incident that no query shows, for the edits that combine two videos."""
    footage = Footage(f"{name}-donor", dressing, camera=0, start_s=0.0, duration_s=DONOR_S)
    return _take(_scene(footage.incident, dressing=dressing, seed=seed), footage, seed=seed)


def _edited(clip: Clip, frames: Pixels, *, donor: Pixels, seed: int) -> tuple[Pixels, int]:
    """The clip's frames and x264 quality."""
    rng = _edit_rng(clip, seed=seed)
    edited, crf = frames, NORMAL_CRF
    for kind in (clip.edit, clip.touch_up):
        if kind is not None and kind != "none":
            edited = edit_video(kind, edited, donor=donor, fps=FPS, rng=rng)
            crf = max(crf, EDITS[kind].crf)
    if clip.channel is not None:
        edited = broadcast(edited, channel=clip.channel, fps=FPS, rng=rng)
    return np.ascontiguousarray(edited), crf
