"""The generated demo corpus: labelled mp4 files of invented incidents, split by incident.

The content of the files depends only on the arguments: equal arguments give equal plans and equal
bytes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby, islice, product
from pathlib import Path
from typing import Literal

from hapvr.benchmark.definition import is_complete, write_clips
from hapvr.demo.camera import Camera, film
from hapvr.demo.edits import (
    EDITS,
    INTRO_S,
    LIGHT_EDITS,
    NORMAL_CRF,
    NUM_CHANNELS,
    STRONG_EDITS,
    broadcast,
)
from hapvr.demo.files import prepare_folder, write_mp4
from hapvr.demo.scene import NUM_DRESSINGS, SEED, Pixels, Scene
from hapvr.demo.timelines import Times, true_times
from hapvr.errors import DataError, VideoError
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.seeding import numpy_rng
from hapvr.video.pool import in_workers
from hapvr.video.settings import SamplingConfig, Split

Role = Literal["query", "database"]

GENERATOR_VERSION = 2
"""Raised whenever the same arguments would give other pictures; corpora of another version are
rebuilt."""
FPS = 12.0
DONOR_S = 6.0
SPAN_S = 16.0
"""Seconds from the beginning of one time span of an incident to that of the next."""
LABELLED_CLIP_S = 9.5


@dataclass(frozen=True)
class Footage:
    """A piece of what one camera filmed of one incident; seconds are those of the incident."""

    incident: str
    dressing: int
    camera: int
    start_s: float
    duration_s: float


@dataclass(frozen=True)
class Clip:
    """One file: footage, and what editors made of it, in this order. edit: a key of EDITS, or
    "none". touch_up: a light edit after it, or None. channel: whose show it was in, or None."""

    file: str
    role: Role
    footage: Footage
    edit: str = "none"
    touch_up: str | None = None
    channel: int | None = None


def split_incidents(num_incidents: int) -> dict[Split, list[int]]:
    """Numbers of the incidents of each split, about 14 : 4 : 8; of three or more incidents, each
    split gets at least one."""
    num_validation = max(round(num_incidents * 4 / 26), 1)
    num_test = max(round(num_incidents * 8 / 26), 1)
    num_train = num_incidents - num_validation - num_test
    end_train = num_train
    end_validation = end_train + num_validation
    return {
        "train": list(range(end_train)),
        "validation": list(range(end_train, end_validation)),
        "test": list(range(end_validation, num_incidents)),
    }


def plan_split(split: Split, incidents: list[int]) -> list[Clip]:
    """The clips of one split, in the order of their incidents. For training, three cameras, each on
    another time span: footage of one incident, never of one moment. Otherwise two queries (camera 1
    in span 1, camera 2 in span 2), their copies, what the other cameras filmed, and distractors:
    other incidents in places furnished like this one.
    """
    if split == "train":
        return [clip for number in incidents for clip in _training_clips(number)]

    clips: list[Clip] = []
    light = cycle(LIGHT_EDITS)
    strong = cycle(STRONG_EDITS)
    for number in incidents:
        copies = (
            (next(light), *islice(strong, 2)),
            (next(light), next(strong)),
        )
        clips += _labelled_clips(number, copies)
        clips += _distractors(number, count=1 if split == "validation" else 2)

    return clips


def _training_clips(number: int) -> list[Clip]:
    """What three cameras filmed of an incident, one after the other."""
    clips = []
    for camera in range(3):
        file = f"{_incident(number)}-camera-{camera + 1}.mp4"
        start_s = camera * SPAN_S
        footage = Footage(_incident(number), _dressing(number), camera, start_s, duration_s=13.0)
        clips.append(Clip(file, "database", footage, channel=_channel(file)))

    return clips


def _labelled_clips(number: int, copies: Sequence[Sequence[str]]) -> list[Clip]:
    """What three cameras filmed of an incident in two spans, each query followed by its copies.
    copies: kinds of edits, of either query."""
    incident = _incident(number)
    clips = []
    for camera, span in islice(product(range(3), range(2)), 5 if number % 2 else 6):
        jitter_s = float(numpy_rng(SEED, "start", incident, camera, span).uniform(0, 3))
        start_s = span * SPAN_S + jitter_s
        footage = Footage(incident, _dressing(number), camera, start_s, LABELLED_CLIP_S)
        name = f"{incident}-camera-{camera + 1}-span-{span + 1}"
        role: Role = "query" if camera == span else "database"
        clips.append(Clip(f"{name}.mp4", role, footage, channel=_channel(f"{name}.mp4")))
        if role == "query":
            clips += [_copy(f"{name}-{kind}.mp4", footage, kind) for kind in copies[span]]

    return clips


def _copy(file: str, footage: Footage, kind: str) -> Clip:
    """An edited copy; most of those that are not near duplicates are touched up, too."""
    rng = numpy_rng(SEED, "touch-up", file)
    touched = rng.uniform() < 0.85 and EDITS[kind].label == "DS"
    touch_up = str(rng.choice(LIGHT_EDITS)) if touched else None
    return Clip(file, "database", footage, kind, touch_up, _channel(file))


def _distractors(number: int, *, count: int) -> list[Clip]:
    """Other incidents in places furnished like that of an incident."""
    clips = []
    for index in range(count):
        name = f"distractor-{number:03d}-{index + 1}"
        footage = Footage(name, _dressing(number), index % 3, 0.0, LABELLED_CLIP_S)
        clips.append(Clip(f"{name}.mp4", "database", footage, channel=_channel(name)))

    return clips


def _incident(number: int) -> str:
    return f"incident-{number:03d}"


def _dressing(number: int) -> int:
    return number % NUM_DRESSINGS


def _channel(name: str) -> int | None:
    """The channel on which a clip is shown; half of the clips are on none."""
    rng = numpy_rng(SEED, "channel", name)
    return int(rng.integers(NUM_CHANNELS)) if rng.uniform() < 0.5 else None


def pair_label(query: Clip, reference: Clip) -> str | None:
    """FIVR's label of a pair: ND or DS (same camera and time), CS (same time), IS (same incident),
    or None."""
    first = query.footage
    second = reference.footage
    if first.incident != second.incident:
        return None
    ends_s = (first.start_s + first.duration_s, second.start_s + second.duration_s)
    if max(first.start_s, second.start_s) >= min(ends_s):
        return "IS"
    if first.camera != second.camera:
        return "CS"
    return "ND" if reference.edit == "none" else EDITS[reference.edit].label


def labels_of(clips: Sequence[Clip]) -> list[tuple[str, str, str]]:
    """Files and label of all related pairs of a query and a database clip."""
    labels = []
    for query, reference in _pairs(clips):
        label = pair_label(query, reference)
        if label is not None:
            labels.append((query.file, reference.file, label))

    return labels


def _pairs(clips: Sequence[Clip]) -> list[tuple[Clip, Clip]]:
    """Each query with each clip of the database."""
    queries = [clip for clip in clips if clip.role == "query"]
    database = [clip for clip in clips if clip.role == "database"]
    return list(product(queries, database))


def make_demo_corpus(
    folder: Path, *, name: str, num_incidents: int = 26, progress: Progress = no_progress
) -> tuple[Path, ...]:
    """Make the files of the corpus that are missing below `folder`, and return the folders of its
    splits. name: the splits are the folders NAME-train, NAME-validation and NAME-test, with the
    files in `videos/` of each; validation and test are `clips` benchmarks. num_incidents: at least
    3, of which about 14/26 train, 4/26 validate and 8/26 test. Equal arguments and library versions
    give equal bytes. progress: counts files. Raises DataError where a folder holds something else.
    """
    settings = {
        "generator_version": GENERATOR_VERSION,
        "name": name,
        "num_incidents": num_incidents,
    }
    provenance = Provenance("demo_corpus", settings, environment=environment())
    plans: dict[Split, list[Clip]] = {
        split: plan_split(split, incidents)
        for split, incidents in split_incidents(num_incidents).items()
    }
    folders = {split: folder / f"{name}-{split}" for split in plans}
    for split_folder in folders.values():
        prepare_folder(split_folder, fingerprint=provenance.fingerprint)

    _render_missing({folders[split] / "videos": plan for split, plan in plans.items()}, progress)
    for split, plan in plans.items():
        if split != "train" and not is_complete(folders[split]):
            _write_benchmark(folders[split], plan, provenance)

    return tuple(folders.values())


def _render_missing(plans: Mapping[Path, Sequence[Clip]], progress: Progress) -> None:
    """Make the files that are missing, in worker processes. plans: clips by their folder. Raises
    DataError."""
    tasks = []
    for videos, plan in plans.items():
        missing = [clip for clip in plan if not (videos / clip.file).is_file()]
        for _, clips in groupby(missing, key=lambda clip: clip.footage.incident):
            tasks.append((videos, tuple(clips)))

    total = sum(map(len, plans.values()))
    done = total - sum(len(clips) for _, clips in tasks)
    progress(done, total)
    limits = SamplingConfig(timeout_s=3600)
    for (_, planned), failure in in_workers(render_incident, tasks, config=limits):
        if isinstance(failure, VideoError):
            raise DataError(
                f"demo corpus: {planned[0].footage.incident} cannot be filmed: {failure}; "
                "run it again"
            )

        done += len(planned)
        progress(done, total)


def _write_benchmark(folder: Path, plan: Sequence[Clip], provenance: Provenance) -> None:
    """Write the definition of a split whose files exist."""
    videos = []
    for clip in plan:
        edits = (clip.edit, clip.touch_up, None if clip.channel is None else "channel")
        videos.append((clip.file, clip.role, clip.footage.incident, "+".join(filter(None, edits))))

    segments = []
    for query, copy in _pairs(plan):
        if copy.footage == query.footage:  # that of other cameras is not a copy
            for times in _copy_times(query, copy):
                segments.append((query.file, copy.file, *times))

    write_clips(
        folder,
        name=folder.name,
        videos=videos,
        labels=labels_of(plan),
        segments=segments,
        provenance=json.loads(provenance.to_json()),
    )


def render_incident(task: tuple[Path, tuple[Clip, ...]]) -> None:
    """Film, edit and encode clips of one incident. task: the folder for them, and the clips."""
    folder, planned = task
    footage = planned[0].footage
    combines = any(clip.edit != "none" and EDITS[clip.edit].combines for clip in planned)
    donor = _film_donor(footage) if combines else None
    scene = Scene(footage.incident, footage.dressing, duration_s=3 * SPAN_S)
    for take, clips in groupby(planned, key=lambda clip: clip.footage):
        frames = _take(scene, take)
        for clip in clips:
            edited, crf = _edited(clip, frames, frames if donor is None else donor)
            write_mp4(folder / clip.file, edited, fps=FPS, crf=crf)


def _film_donor(footage: Footage) -> Pixels:
    """A few seconds of an incident that no query shows."""
    incident = f"{footage.incident}-donor"
    dressing = footage.dressing + 1
    shown = Footage(incident, dressing, camera=0, start_s=0.0, duration_s=DONOR_S)
    return _take(Scene(incident, dressing, duration_s=3 * SPAN_S), shown)


def _edited(clip: Clip, frames: Pixels, donor: Pixels) -> tuple[Pixels, int]:
    """What editors make of footage, and the x264 quality of the result."""
    rng = numpy_rng(SEED, "edit", clip.file)
    crf = NORMAL_CRF
    for kind in (clip.edit, clip.touch_up):
        if kind in EDITS:
            edit = EDITS[kind]
            frames = edit.apply(frames, donor, FPS, rng)
            crf = max(crf, edit.crf)

    if clip.channel is not None:
        frames = broadcast(frames, channel=clip.channel, fps=FPS, rng=rng)
    return frames, crf


def _take(scene: Scene, footage: Footage) -> Pixels:
    camera = Camera(footage.incident, footage.camera)
    start_s = footage.start_s
    name = f"{footage.incident}/{footage.camera}/{start_s:.3f}"
    return film(scene, camera, start_s=start_s, duration_s=footage.duration_s, fps=FPS, name=name)


def _copy_times(query: Clip, copy: Clip) -> list[Times]:
    num_frames = max(round(query.footage.duration_s * FPS), 1)
    num_donor = max(round(DONOR_S * FPS), 1)
    kind = "low_bitrate" if copy.edit == "none" else copy.edit
    rows = EDITS[kind].rows(num_frames, num_donor, FPS, numpy_rng(SEED, "edit", copy.file))
    return true_times(rows, fps=FPS, original_start_s=_intro_s(query), copy_start_s=_intro_s(copy))


def _intro_s(clip: Clip) -> float:
    return 0.0 if clip.channel is None else INTRO_S
