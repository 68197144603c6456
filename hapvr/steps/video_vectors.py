"""The index of one vector per video, kept up to date beside the index of frames."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hapvr.errors import DataError
from hapvr.search.current import CurrentIndex
from hapvr.search.descriptors import descriptor_shard, searchable_videos
from hapvr.search.frame_index import FrameIndex
from hapvr.search.indexes import create_index
from hapvr.search.video_index import open_videos, videos_place
from hapvr.steps.project import Project
from hapvr.steps.search_model import SearchModel


@dataclass(frozen=True)
class FilledVideos:
    """An index of videos with all shards."""

    index: FrameIndex
    revision_before: int
    """-1 of a new index"""

    @property
    def changed(self) -> bool:
        """Whether the index has changed."""
        return self.index.status().revision != self.revision_before


def fill_videos(
    project: Project,
    model: SearchModel,
    place: str,
    finished: Sequence[str],
    awaited: Collection[str],
) -> FilledVideos | None:
    """Add the video vectors of all described shards to the index of videos, and remove shards that
    are gone.

    place: of the index of frames
    finished: shards whose frames are described
    awaited: shards whose features are unfinished, which are not touched

    Returns None for a model that has no vector of a whole video.
    """
    if not model.embeds_videos:
        return None
    settings = project.config.search.index
    index = open_videos(project.root, place, settings)
    revision_before = -1
    if index is None:
        url = project.root.url_of(videos_place(place))
        made_with = {"model": model.uri, "digest": model.digest}
        index = create_index(url, model.embedding_dims, made_with, settings)
    else:
        revision_before = index.status().revision

    held = index.shard_digests()
    for key in finished:
        shard = descriptor_shard(project.root, model.digest, key)
        digest = shard.read().data_sha256
        if held.get(key) != digest:
            rows = searchable_videos(shard, model.embedding_dims)
            index.replace_shard(key, rows, digest=digest)

    for key in held:
        if key not in finished and key not in awaited:
            index.delete_shard(key)

    return FilledVideos(index, revision_before)


def first_stage_index(project: Project, current: CurrentIndex, uri: str) -> FrameIndex | None:
    """The index of videos, if by the configuration it chooses the candidates of searches; None if
    votes of frames do.

    uri: the model that made the index

    Raises: DataError if the index has no vectors of whole videos, DamagedError if it is damaged.
    """
    search = project.config.search
    if search.first_stage == "frames":
        return None
    index = open_videos(project.root, current.place, search.index)
    if index is None:
        raise DataError(
            f"search: search.first_stage is `videos`, and the index of {uri} has no vectors of "
            "whole videos, which only the families `tca` and `vvs` give; set it to `frames`, or "
            "run `hapvr index build` with such a model"
        )

    return index
