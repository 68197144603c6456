"""The generated demo corpus: labelled mp4 files of invented incidents, split by incident.

What the files hold follows from the arguments alone: equal arguments give equal plans and equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby, islice, pairwise
from pathlib import Path
from typing import Literal, get_args

from hapvr.benchmark.definitions.catalog import is_complete, write_clips
from hapvr.demo.edits import (
    EDITS,
    INTRO_S,
    LIGHT_EDITS,
    NORMAL_CRF,
    NUM_CHANNELS,
    STRONG_EDITS,
    Times,
    broadcast,
    true_times,
)
from hapvr.demo.output import prepare_folder, write_mp4
from hapvr.demo.scene import NUM_DRESSINGS, SEED, Camera, Pixels, Scene, film
from hapvr.errors import DataError, VideoError
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.seeding import numpy_rng
from hapvr.video.pool import in_workers
from hapvr.video.settings import SamplingConfig, Split

Role = Literal["query", "database"]

GENERATOR_VERSION = 2
"""Incremented whenever the same arguments would give other pictures; corpora of another version are made again."""
FPS = 12.0
INCIDENT_TIMEOUT_S = 3600.0
DONOR_S = 6.0
SPAN_S = 16.0
"""Seconds from the beginning of one time span of an incident to that of the next."""
LABELLED_CLIP_S = 9.5
TRAIN_CLIP_S = 13.0
CHANNEL_RATE = 0.5
TOUCH_UP_RATE = 0.85
DISTRACTORS_PER_INCIDENT = {"validation": 1, "test": 2}


@dataclass(frozen=True)
class Footage:
    """A piece of what one camera filmed of one incident; seconds are those of the incident."""

    incident: str
    dressing: int
    camera: int
    start_s: float
    duration_s: float

    def overlaps(self, other: Footage) -> bool:
        """Whether both show a common stretch of the same incident, from whichever camera."""
        latest_start = max(self.start_s, other.start_s)
        earliest_end = min(self.start_s + self.duration_s, other.start_s + other.duration_s)
        return self.incident == other.incident and latest_start < earliest_end


@dataclass(frozen=True)
class Clip:
    """One file: footage, and what editors made of it, in this order.

    edit: a key of EDITS, or "none". touch_up: a light edit after it, or None. channel: whose show it was in, or None.
    """

    file: str
    role: Role
    footage: Footage
    edit: str = "none"
    touch_up: str | None = None
    channel: int | None = None


def split_incidents(num_incidents: int) -> dict[Split, list[int]]:
    """Numbers of the incidents of each split, about 14 : 4 : 8; each split gets at least one of at least three."""
    num_validation = max(round(num_incidents * 4 / 26), 1)
    num_test = max(round(num_incidents * 8 / 26), 1)
    num_train = num_incidents - num_validation - num_test
    borders = pairwise((0, num_train, num_train + num_validation, num_incidents))
    return {split: list(range(*border)) for split, border in zip(get_args(Split), borders, strict=True)}


def plan_split(split: Split, incidents: list[int]) -> list[Clip]:
    """The clips of one split, in the order of their incidents."""
    if split == "train":
        return [clip for number in incidents for clip in _train_clips(number)]
    light, strong = cycle(LIGHT_EDITS), cycle(STRONG_EDITS)
    clips: list[Clip] = []
    for number in incidents:
        copies = ((next(light), *islice(strong, 2)), (next(light), next(strong)))
        clips += _labelled_clips(number, copies)
        clips += _distractors(number, count=DISTRACTORS_PER_INCIDENT[split])
    return clips


def pair_label(query: Clip, reference: Clip) -> str | None:
    """FIVR's label of a pair: ND or DS (same camera and time), CS (same time), IS (same incident), or None."""
    if query.footage.incident != reference.footage.incident:
        return None
    if not query.footage.overlaps(reference.footage):
        return "IS"
    if query.footage.camera != reference.footage.camera:
        return "CS"
    return "ND" if reference.edit == "none" else EDITS[reference.edit].label


def labels_of(clips: Sequence[Clip]) -> list[tuple[str, str, str]]:
    """Files and label of all related pairs of a query and a database clip."""
    pairs = _pairs(clips)
    return [(query.file, other.file, label) for query, other in pairs if (label := pair_label(query, other))]


def _pairs(clips: Sequence[Clip]) -> list[tuple[Clip, Clip]]:
    """Each query with each clip of the database."""
    database = [clip for clip in clips if clip.role == "database"]
    return [(clip, other) for clip in clips if clip.role == "query" for other in database]


def _train_clips(number: int) -> Iterator[Clip]:
    """Three cameras, each on another time span: footage of one incident, never of one moment."""
    for camera in range(3):
        footage = Footage(f"incident-{number:03d}", number % NUM_DRESSINGS, camera, camera * SPAN_S, TRAIN_CLIP_S)
        file = f"{footage.incident}-camera-{camera + 1}.mp4"
        yield Clip(file, "database", footage, channel=_channel(file))


def _labelled_clips(number: int, copies: tuple[tuple[str, ...], ...]) -> Iterator[Clip]:
    """Two queries (camera 1 in span 1, camera 2 in span 2), their copies, and what the other cameras filmed."""
    incident = f"incident-{number:03d}"
    for camera in range(3):
        for span in range(2):
            if camera == 2 and span == 1 and number % 2:
                continue
            jitter = float(numpy_rng(SEED, "start", incident, camera, span).uniform(0, 3))
            footage = Footage(incident, number % NUM_DRESSINGS, camera, span * SPAN_S + jitter, LABELLED_CLIP_S)
            name = f"{incident}-camera-{camera + 1}-span-{span + 1}"
            role: Role = "query" if camera == span else "database"
            yield Clip(f"{name}.mp4", role, footage, channel=_channel(f"{name}.mp4"))
            for kind in copies[span] if camera == span else ():
                copy = f"{name}-{kind}.mp4"
                touch_up = _touch_up(copy) if EDITS[kind].label == "DS" else None
                yield Clip(copy, "database", footage, kind, touch_up, _channel(copy))


def _distractors(number: int, *, count: int) -> Iterator[Clip]:
    """Other incidents in places furnished like this one."""
    for index in range(count):
        incident = f"distractor-{number:03d}-{index + 1}"
        footage = Footage(incident, number % NUM_DRESSINGS, index % 3, 0.0, LABELLED_CLIP_S)
        yield Clip(f"{incident}.mp4", "database", footage, channel=_channel(incident))


def _edits(clip: Clip) -> str:
    """The column `edit` of videos.parquet."""
    return "+".join(filter(None, (clip.edit, clip.touch_up, None if clip.channel is None else "channel")))


def _touch_up(file: str) -> str | None:
    rng = numpy_rng(SEED, "touch-up", file)
    return str(rng.choice(LIGHT_EDITS)) if rng.uniform() < TOUCH_UP_RATE else None


def _channel(file: str) -> int | None:
    rng = numpy_rng(SEED, "channel", file)
    return int(rng.integers(NUM_CHANNELS)) if rng.uniform() < CHANNEL_RATE else None


def make_demo_corpus(
    folder: Path, *, name: str, num_incidents: int = 26, progress: Progress = no_progress
) -> tuple[Path, ...]:
    """Make the files of the corpus that are missing below `folder`, and return the folders of its splits.

    name: the splits are the folders NAME-train, NAME-validation and NAME-test, with the files in `videos/` of each;
    validation and test are `clips` benchmarks. num_incidents: at least 3, of which about 14/26 train, 4/26 validate and 8/26
    test. Equal arguments and library versions give equal bytes. progress: counts files. Raises DataError where a folder
    holds something else.
    """
    settings = {"generator_version": GENERATOR_VERSION, "name": name, "num_incidents": num_incidents}
    provenance = Provenance("demo_corpus", settings, environment=environment())
    plans: dict[Path, list[Clip]] = {}
    for split, incidents in split_incidents(num_incidents).items():
        plans[folder / f"{name}-{split}"] = plan_split(split, incidents)
    tasks = []
    for split_folder, plan in plans.items():
        prepare_folder(split_folder, fingerprint=provenance.fingerprint)
        missing = [clip for clip in plan if not (split_folder / "videos" / clip.file).is_file()]
        for _, clips in groupby(missing, key=lambda clip: clip.footage.incident):
            tasks.append((split_folder / "videos", tuple(clips)))
    total = sum(len(plan) for plan in plans.values())
    done = total - sum(len(clips) for _, clips in tasks)
    progress(done, total)
    limits = SamplingConfig(timeout_s=INCIDENT_TIMEOUT_S)
    for (_, planned), failure in in_workers(render_incident, tasks, config=limits):
        if isinstance(failure, VideoError):
            raise DataError(f"demo corpus: {planned[0].footage.incident} cannot be filmed: {failure}; run it again")
        done += len(planned)
        progress(done, total)
    for split_folder, plan in list(plans.items())[1:]:
        if not is_complete(split_folder):
            write_clips(
                split_folder,
                name=split_folder.name,
                videos=[(clip.file, clip.role, clip.footage.incident, _edits(clip)) for clip in plan],
                labels=labels_of(plan),
                segments=[
                    (query.file, copy.file, *times)
                    for query, copy in _pairs(plan)
                    if copy.footage == query.footage  # that of other cameras is not a copy
                    for times in _copy_times(query, copy)
                ],
                provenance=json.loads(provenance.to_json()),
            )
    return tuple(plans)


def render_incident(task: tuple[Path, tuple[Clip, ...]]) -> None:
    """Film, edit and encode clips of one incident. task: the folder for them, and the clips."""
    folder, planned = task
    first, donor = planned[0].footage, None
    scene = _scene(first)
    if any(clip.edit != "none" and EDITS[clip.edit].combines for clip in planned):
        # a few seconds of an incident that no query shows
        other = Footage(f"{first.incident}-donor", first.dressing + 1, camera=0, start_s=0.0, duration_s=DONOR_S)
        donor = _take(_scene(other), other)
    for take, clips in groupby(planned, key=lambda clip: clip.footage):
        frames = _take(scene, take)
        for clip in clips:
            rng = numpy_rng(SEED, "edit", clip.file)
            edited, crf = frames, NORMAL_CRF
            for kind in (clip.edit, clip.touch_up):
                if kind is not None and kind != "none":
                    edited = EDITS[kind].apply(edited, frames if donor is None else donor, FPS, rng)
                    crf = max(crf, EDITS[kind].crf)
            if clip.channel is not None:
                edited = broadcast(edited, channel=clip.channel, fps=FPS, rng=rng)
            write_mp4(folder / clip.file, edited, fps=FPS, crf=crf)


def _scene(footage: Footage) -> Scene:
    return Scene(footage.incident, footage.dressing, duration_s=3 * SPAN_S)


def _take(scene: Scene, footage: Footage) -> Pixels:
    camera = Camera(footage.incident, footage.camera)
    name = f"{footage.incident}/{footage.camera}/{footage.start_s:.3f}"
    return film(scene, camera, start_s=footage.start_s, duration_s=footage.duration_s, fps=FPS, name=name)


def _copy_times(query: Clip, copy: Clip) -> list[Times]:
    frames, donor = (max(round(seconds * FPS), 1) for seconds in (query.footage.duration_s, DONOR_S))
    kind = "low_bitrate" if copy.edit == "none" else copy.edit
    drawn = EDITS[kind].rows(frames, donor, FPS, numpy_rng(SEED, "edit", copy.file))
    starts = [0.0 if clip.channel is None else INTRO_S for clip in (query, copy)]
    return true_times(drawn, fps=FPS, original_start_s=starts[0], copy_start_s=starts[1])
