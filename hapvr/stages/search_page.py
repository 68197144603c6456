"""The answers of searches as one HTML file, with pictures of the matching parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hapvr.errors import DataError
from hapvr.scorer.pictures import is_picture
from hapvr.search.facts import CollectionFacts
from hapvr.search.match import SearchAnswer
from hapvr.search.page import answers_page
from hapvr.stages.frames import open_frames
from hapvr.stages.project import Project
from hapvr.storage.frames import VideoFrames
from hapvr.video.pool import sample_videos

PICTURE_SIDE_PX = 128


def search_page(
    project: Project, answers: Sequence[SearchAnswer], *, shards: Mapping[str, str], facts: CollectionFacts
) -> str:
    """An HTML document that needs nothing else. shards: video id -> shard, of the collection."""
    pictures = _Pictures(project, shards)
    return answers_page(
        answers,
        query_picture=pictures.of_query,
        reference_picture=pictures.of_video,
        links=lambda video_id: facts.of(video_id).path,
    )


class _Pictures:
    """Frames by name and second; those of the last query and of the last video are kept."""

    def __init__(self, project: Project, shards: Mapping[str, str]) -> None:
        self._project = project
        self._shards = shards
        self._query: tuple[str, VideoFrames | None] = ("", None)
        self._video: tuple[str, VideoFrames | None] = ("", None)

    def of_query(self, name: str, second: float) -> bytes | None:
        if self._query[0] != name:
            self._query = (name, self._stored(name) if name in self._shards else self._decoded(name))
        return _nearest(self._query[1], second)

    def of_video(self, video_id: str, second: float) -> bytes | None:
        if self._video[0] != video_id:
            self._video = (video_id, self._stored(video_id))
        return _nearest(self._video[1], second)

    def _stored(self, video_id: str) -> VideoFrames | None:
        try:
            with open_frames(self._project, self._shards[video_id]) as frames:
                return frames.read(video_id)
        except DataError:  # imported features have none, and the file may be gone
            return None

    def _decoded(self, name: str) -> VideoFrames | None:
        if "://" in name or is_picture(name):
            return None
        sampling = self._project.config.sampling.model_copy(update={"short_side_px": PICTURE_SIDE_PX})
        video = next(iter(sample_videos([(name, Path(name))], config=sampling)))
        return None if video.reason else VideoFrames(name, video.jpegs, video.timestamps_s)


def _nearest(frames: VideoFrames | None, second: float) -> bytes | None:
    if frames is None or not frames.jpegs:
        return None
    return frames.jpegs[int(np.abs(np.asarray(frames.timestamps_s) - second).argmin())]
