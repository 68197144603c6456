"""Which clips the demo corpus holds, and how they relate. Nothing is drawn here: equal arguments give equal plans."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal

import polars as pl

from hapvr.corpus.drawing import NUM_CHANNELS
from hapvr.corpus.edits import EDITS, LIGHT_EDITS, STRONG_EDITS
from hapvr.corpus.scene import NUM_DRESSINGS
from hapvr.errors import ArgumentError
from hapvr.seeding import numpy_rng

Role = Literal["query", "database"]
Split = Literal["train", "validation", "test"]

SPAN_S = 16.0
"""Seconds from the beginning of one time span of an incident to that of the next."""
LABELLED_CLIP_S = 9.5
TRAIN_CLIP_S = 13.0
CHANNEL_RATE = 0.5
TOUCH_UP_RATE = 0.85
DISTRACTORS_PER_INCIDENT = {"validation": 1, "test": 2}
_MIN_INCIDENTS = 3


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

    @property
    def edit_text(self) -> str:
        """The column `edit` of videos.parquet."""
        parts = (self.edit, self.touch_up, None if self.channel is None else "channel")
        return "+".join(part for part in parts if part is not None)


def split_incidents(num_incidents: int) -> dict[Split, list[int]]:
    """Numbers of the incidents of each split, about 14 : 4 : 8; each split gets at least one. ArgumentError below 3."""
    if num_incidents < _MIN_INCIDENTS:
        raise ArgumentError(f"num_incidents: got {num_incidents}; wanted at least {_MIN_INCIDENTS}, one for each split")
    num_validation = max(round(num_incidents * 4 / 26), 1)
    num_test = max(round(num_incidents * 8 / 26), 1)
    num_train = num_incidents - num_validation - num_test
    numbers = list(range(num_incidents))
    return {
        "train": numbers[:num_train],
        "validation": numbers[num_train : num_train + num_validation],
        "test": numbers[num_train + num_validation :],
    }


def plan_split(split: Split, *, incidents: list[int], seed: int) -> list[Clip]:
    """The clips of one split, in the order of their incidents."""
    if split == "train":
        return [clip for number in incidents for clip in _train_clips(number, seed=seed)]
    light, strong = cycle(LIGHT_EDITS), cycle(STRONG_EDITS)
    clips = []
    for number in incidents:
        copies = ((0, (next(light), *islice(strong, 2))), (1, (next(light), next(strong))))
        clips += _labelled_clips(number, copies=copies, seed=seed)
        clips += _distractors(number, count=DISTRACTORS_PER_INCIDENT[split], seed=seed)
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


def label_table(clips: list[Clip], *, name: str) -> pl.DataFrame:
    """Columns query_id, reference_id, label of all related pairs of a query and a database clip."""
    rows = [
        (f"{name}/{query.file}", f"{name}/{reference.file}", label)
        for query in clips
        if query.role == "query"
        for reference in clips
        if reference.role == "database" and (label := pair_label(query, reference)) is not None
    ]
    columns = {"query_id": pl.String, "reference_id": pl.String, "label": pl.String}
    return pl.DataFrame(rows, schema=columns, orient="row")


def video_table(clips: list[Clip], *, name: str) -> pl.DataFrame:
    """Columns video_id, path, role, group, edit of the clips."""
    rows = [
        (f"{name}/{clip.file}", f"videos/{clip.file}", clip.role, clip.footage.incident, clip.edit_text)
        for clip in clips
    ]
    columns = {"video_id": pl.String, "path": pl.String, "role": pl.String, "group": pl.String, "edit": pl.String}
    return pl.DataFrame(rows, schema=columns, orient="row")


def _train_clips(number: int, *, seed: int) -> list[Clip]:
    """Three cameras, each on another time span: footage of one incident, never of one moment."""
    incident = f"incident-{number:03d}"
    clips = []
    for camera in range(3):
        footage = Footage(incident, number % NUM_DRESSINGS, camera, camera * SPAN_S, TRAIN_CLIP_S)
        file = f"{incident}-camera-{camera + 1}.mp4"
        clips.append(Clip(file, "database", footage, channel=_channel(seed, file)))
    return clips


def _labelled_clips(number: int, *, copies: tuple[tuple[int, tuple[str, ...]], ...], seed: int) -> list[Clip]:
    """Two queries (camera 1 in span 1, camera 2 in span 2), their copies, and what the other cameras filmed."""
    incident = f"incident-{number:03d}"
    clips = []
    for camera in range(3):
        for span in range(2):
            jitter = float(numpy_rng(seed, "start", incident, camera, span).uniform(0, 3))
            footage = Footage(incident, number % NUM_DRESSINGS, camera, span * SPAN_S + jitter, LABELLED_CLIP_S)
            is_query = camera == span
            if camera == 2 and span == 1 and number % 2:
                continue
            file = f"{incident}-camera-{camera + 1}-span-{span + 1}.mp4"
            clips.append(Clip(file, "query" if is_query else "database", footage, channel=_channel(seed, file)))
            for kind in copies[span][1] if is_query else ():
                copy = f"{incident}-camera-{camera + 1}-span-{span + 1}-{kind}.mp4"
                touch_up = _touch_up(seed, copy) if EDITS[kind].label == "DS" else None
                clips.append(Clip(copy, "database", footage, kind, touch_up, _channel(seed, copy)))
    return clips


def _distractors(number: int, *, count: int, seed: int) -> list[Clip]:
    """Other incidents in places furnished like this one."""
    clips = []
    for index in range(count):
        incident = f"distractor-{number:03d}-{index + 1}"
        footage = Footage(incident, number % NUM_DRESSINGS, index % 3, 0.0, LABELLED_CLIP_S)
        clips.append(Clip(f"{incident}.mp4", "database", footage, channel=_channel(seed, incident)))
    return clips


def _touch_up(seed: int, file: str) -> str | None:
    rng = numpy_rng(seed, "touch-up", file)
    return str(rng.choice(LIGHT_EDITS)) if rng.uniform() < TOUCH_UP_RATE else None


def _channel(seed: int, file: str) -> int | None:
    rng = numpy_rng(seed, "channel", file)
    return int(rng.integers(NUM_CHANNELS)) if rng.uniform() < CHANNEL_RATE else None
