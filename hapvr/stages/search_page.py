"""The answers of searches as one HTML file, with pictures of the matching parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hapvr.scorer.pictures import is_picture
from hapvr.search.facts import CollectionFacts
from hapvr.search.match import SearchAnswer
from hapvr.search.page import answers_page
from hapvr.stages.pictures import StoredPictures, nearest
from hapvr.stages.project import Project
from hapvr.storage.frames import VideoFrames
from hapvr.video.pool import sample_videos

PICTURE_SIDE_PX = 128


def search_page(
    project: Project, answers: Sequence[SearchAnswer], *, shards: Mapping[str, str], facts: CollectionFacts
) -> str:
    """An HTML document that needs nothing else. shards: video id -> shard, of the collection."""
    stored, queries = StoredPictures(project, shards), _Queries(project)
    return answers_page(
        answers,
        query_picture=lambda name, second: (stored if name in shards else queries).at(name, second),
        reference_picture=stored.at,
        links=lambda video_id: facts.of(video_id).path,
    )


class _Queries:
    """Frames of queries that are no videos of the collection; those of the last one are kept."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._last: tuple[str, VideoFrames | None] = ("", None)

    def at(self, name: str, second: float) -> bytes | None:
        if self._last[0] != name:
            self._last = (name, self._decoded(name))
        return nearest(self._last[1], second)

    def _decoded(self, name: str) -> VideoFrames | None:
        if "://" in name or is_picture(name):
            return None
        sampling = self._project.config.sampling.model_copy(update={"short_side_px": PICTURE_SIDE_PX})
        video = next(iter(sample_videos([(name, Path(name))], config=sampling)))
        return None if video.reason else VideoFrames(name, video.jpegs, video.timestamps_s)
