"""The generated demo corpus: labelled mp4 files of invented incidents, split by incident; and the
folders that know what generated videos were made from.

What the files hold follows from the arguments alone: equal arguments give equal plans and equal
bytes.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle, groupby, islice, pairwise, product
from pathlib import Path
from typing import Literal, get_args

import av
import numpy as np

from hapvr.benchmark.definition import is_complete, write_clips
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
from hapvr.demo.scene import NUM_DRESSINGS, SEED, Camera, Pixels, Scene, film
from hapvr.errors import DataError, VideoError
from hapvr.files import read_json_as, write_atomic, write_text
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.seeding import numpy_rng
from hapvr.video.pool import in_workers
from hapvr.video.settings import SamplingConfig, Split

Role = Literal["query", "database"]

GENERATOR_VERSION = 2
"""Incremented whenever the same arguments would give other pictures; corpora of another version are
made again."""
FPS = 12.0
DONOR_S = 6.0
SPAN_S = 16.0
"""Seconds from the beginning of one time span of an incident to that of the next."""
LABELLED_CLIP_S = 9.5
_STATE_FILE = "corpus.json"


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
    """Numbers of the incidents of each split, about 14 : 4 : 8; each split gets at least one of at
    least three."""
    num_validation = max(round(num_incidents * 4 / 26), 1)
    num_test = max(round(num_incidents * 8 / 26), 1)
    num_train = num_incidents - num_validation - num_test
    borders = pairwise((0, num_train, num_train + num_validation, num_incidents))
    return {
        split: list(range(*border)) for split, border in zip(get_args(Split), borders, strict=True)
    }


def plan_split(split: Split, incidents: list[int]) -> list[Clip]:
    """The clips of one split, in the order of their incidents. To train, three cameras, each on
    another time span: footage of one incident, never of one moment. Else two queries (camera 1 in
    span 1, camera 2 in span 2), their copies, what the other cameras filmed, and distractors: other
    incidents in places furnished like this one.
    """
    clips: list[Clip] = []
    light, strong = cycle(LIGHT_EDITS), cycle(STRONG_EDITS)
    for number in incidents:
        incident, dressing = f"incident-{number:03d}", number % NUM_DRESSINGS
        if split == "train":
            for camera in range(3):
                file = f"{incident}-camera-{camera + 1}.mp4"
                footage = Footage(incident, dressing, camera, camera * SPAN_S, duration_s=13.0)
                clips.append(Clip(file, "database", footage, channel=_channel(file)))
            continue
        copies = ((next(light), *islice(strong, 2)), (next(light), next(strong)))
        for camera, span in islice(product(range(3), range(2)), 5 if number % 2 else 6):
            jitter = float(numpy_rng(SEED, "start", incident, camera, span).uniform(0, 3))
            footage = Footage(incident, dressing, camera, span * SPAN_S + jitter, LABELLED_CLIP_S)
            name = f"{incident}-camera-{camera + 1}-span-{span + 1}"
            role: Role = "query" if camera == span else "database"
            clips.append(Clip(f"{name}.mp4", role, footage, channel=_channel(f"{name}.mp4")))
            for kind in copies[span] if camera == span else ():
                copy = f"{name}-{kind}.mp4"
                rng = numpy_rng(SEED, "touch-up", copy)
                touched = rng.uniform() < 0.85 and EDITS[kind].label == "DS"
                touch_up = str(rng.choice(LIGHT_EDITS)) if touched else None
                clips.append(Clip(copy, "database", footage, kind, touch_up, _channel(copy)))
        for index in range(1 if split == "validation" else 2):
            name = f"distractor-{number:03d}-{index + 1}"
            footage = Footage(name, dressing, index % 3, 0.0, LABELLED_CLIP_S)
            clips.append(Clip(f"{name}.mp4", "database", footage, channel=_channel(name)))
    return clips


def _channel(name: str) -> int | None:
    """Whose show a clip is in; half of them are in none."""
    rng = numpy_rng(SEED, "channel", name)
    return int(rng.integers(NUM_CHANNELS)) if rng.uniform() < 0.5 else None


def pair_label(query: Clip, reference: Clip) -> str | None:
    """FIVR's label of a pair: ND or DS (same camera and time), CS (same time), IS (same incident),
    or None."""
    first, second = query.footage, reference.footage
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
    return [
        (one.file, other.file, label)
        for one, other in _pairs(clips)
        if (label := pair_label(one, other))
    ]


def _pairs(clips: Sequence[Clip]) -> list[tuple[Clip, Clip]]:
    """Each query with each clip of the database."""
    queries, database = ([clip for clip in clips if clip.role == role] for role in get_args(Role))
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
    splits = split_incidents(num_incidents).items()
    plans = {
        folder / f"{name}-{split}": plan_split(split, incidents) for split, incidents in splits
    }
    tasks = []
    for split_folder, plan in plans.items():
        prepare_folder(split_folder, fingerprint=provenance.fingerprint)
        missing = [clip for clip in plan if not (split_folder / "videos" / clip.file).is_file()]
        for _, clips in groupby(missing, key=lambda clip: clip.footage.incident):
            tasks.append((split_folder / "videos", tuple(clips)))
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
    for split_folder, plan in list(plans.items())[1:]:
        if not is_complete(split_folder):
            videos = []
            for clip in plan:
                edits = (clip.edit, clip.touch_up, None if clip.channel is None else "channel")
                videos.append(
                    (clip.file, clip.role, clip.footage.incident, "+".join(filter(None, edits)))
                )
            segments = [
                (query.file, copy.file, *times)
                for query, copy in _pairs(plan)
                if copy.footage == query.footage  # that of other cameras is not a copy
                for times in _copy_times(query, copy)
            ]
            write_clips(
                split_folder,
                name=split_folder.name,
                videos=videos,
                labels=labels_of(plan),
                segments=segments,
                provenance=json.loads(provenance.to_json()),
            )
    return tuple(plans)


def render_incident(task: tuple[Path, tuple[Clip, ...]]) -> None:
    """Film, edit and encode clips of one incident. task: the folder for them, and the clips."""
    folder, planned = task
    first, donor = planned[0].footage, None
    if any(clip.edit != "none" and EDITS[clip.edit].combines for clip in planned):
        # a few seconds of an incident that no query shows
        other = Footage(
            f"{first.incident}-donor", first.dressing + 1, camera=0, start_s=0.0, duration_s=DONOR_S
        )
        donor = _take(Scene(other.incident, other.dressing, duration_s=3 * SPAN_S), other)
    scene = Scene(first.incident, first.dressing, duration_s=3 * SPAN_S)
    for take, clips in groupby(planned, key=lambda clip: clip.footage):
        frames = _take(scene, take)
        for clip in clips:
            rng = numpy_rng(SEED, "edit", clip.file)
            edited, crf = frames, NORMAL_CRF
            for edit in (EDITS[kind] for kind in (clip.edit, clip.touch_up) if kind in EDITS):
                edited = edit.apply(edited, frames if donor is None else donor, FPS, rng)
                crf = max(crf, edit.crf)
            if clip.channel is not None:
                edited = broadcast(edited, channel=clip.channel, fps=FPS, rng=rng)
            write_mp4(folder / clip.file, edited, fps=FPS, crf=crf)


def _take(scene: Scene, footage: Footage) -> Pixels:
    camera, start_s = Camera(footage.incident, footage.camera), footage.start_s
    name = f"{footage.incident}/{footage.camera}/{start_s:.3f}"
    return film(scene, camera, start_s=start_s, duration_s=footage.duration_s, fps=FPS, name=name)


def _copy_times(query: Clip, copy: Clip) -> list[Times]:
    frames, donor = (
        max(round(seconds * FPS), 1) for seconds in (query.footage.duration_s, DONOR_S)
    )
    kind = "low_bitrate" if copy.edit == "none" else copy.edit
    drawn = EDITS[kind].rows(frames, donor, FPS, numpy_rng(SEED, "edit", copy.file))
    starts = [0.0 if clip.channel is None else INTRO_S for clip in (query, copy)]
    return true_times(drawn, fps=FPS, original_start_s=starts[0], copy_start_s=starts[1])


@dataclass(frozen=True)
class _State:
    fingerprint: str


def folder_fingerprint(folder: Path) -> str:
    """What a folder was made from. Raises DamagedError where it does not say."""
    return read_json_as(folder / _STATE_FILE, _State, hint="remove the folder").fingerprint


def prepare_folder(folder: Path, *, fingerprint: str) -> None:
    """Make an empty `folder` that remembers the fingerprint, unless an earlier call with the same
    fingerprint did. Videos that were generated with another fingerprint are removed. Raises
    DataError for a folder of something else."""
    if (folder / _STATE_FILE).exists():
        if folder_fingerprint(folder) == fingerprint:
            return
        (folder / "benchmark.json").unlink(missing_ok=True)
        if (folder / "videos").exists():
            shutil.rmtree(folder / "videos")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            f"generated videos: {folder} holds something else; name another output folder or source"
        )
    write_text(folder / _STATE_FILE, json.dumps({"fingerprint": fingerprint}) + "\n")


def write_mp4(path: Path, frames: Pixels, *, fps: float, crf: int = NORMAL_CRF) -> None:
    """Encode frames [N >= 1, H, W, 3] as H.264 in mp4; the file appears under its name when it is
    complete. fps: frames per second. crf: x264's constant rate factor, 0 (lossless) to 51. The last
    rows and columns are repeated where a side is odd or below 16, as 4:2:0 video has even sides.
    One thread encodes, since the bytes depend on their number."""
    pad = [(0, max(side + side % 2, 16) - side) for side in frames.shape[1:3]]
    padded = np.pad(frames, ((0, 0), *pad, (0, 0)), mode="edge")
    with (
        write_atomic(path) as part,
        av.open(str(part), "w", format="mp4", options={"fflags": "+bitexact"}) as container,
    ):
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = padded.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.options = {"preset": "superfast", "crf": str(crf)}
        for picture in padded:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
