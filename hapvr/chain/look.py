"""One look at what is stored, by which the steps of the chain tell what they lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import frames_digest
from hapvr.data.manifest import (
    CHANGED_PLACE,
    FORGETTING,
    collection_keys,
    is_training_shard,
    shard_keys,
)
from hapvr.data.shards import Shard
from hapvr.errors import DataError
from hapvr.steps.project import Project

if TYPE_CHECKING:
    from hapvr.steps.search_model import SearchModel

Shards = Literal["", "all", "training", "collection"]


class Look:
    """What several steps ask of a project, each of it read once. A shard that is added meanwhile
    is for the next look."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._digests_of: dict[str, dict[str, str]] = {}
        """Shard -> the digests of its videos and frames."""

    @cached_property
    def keys(self) -> list[str]:
        """All shards of the manifest, sorted."""
        return shard_keys(self.project.root)

    @cached_property
    def _training_keys(self) -> list[str]:
        return [key for key in self.keys if is_training_shard(self.project.root, key)]

    @cached_property
    def _collection_keys(self) -> list[str]:
        return collection_keys(self.project.root, self.keys)

    def shards(self, which: Shards) -> list[str]:
        """Some shards of the manifest, sorted; [""] for a step without shards."""
        if which == "training":
            return self._training_keys
        if which == "collection":
            return self._collection_keys
        return self.keys if which == "all" else [""]

    @cached_property
    def changed_videos(self) -> Mapping[str, str]:
        """Shards some of whose files are not those that were read, as the sensor noted them, each
        with their digest."""
        if not self.project.root.exists(CHANGED_PLACE):
            return {}
        return self.project.root.read_json_as(CHANGED_PLACE, dict[str, str], hint="remove it")

    @cached_property
    def model(self) -> SearchModel | None:
        """The champion; None where there is none."""
        from hapvr.steps.search_model import search_model

        try:
            return search_model(self.project)
        except DataError:
            return None

    @cached_property
    def undescribed_shards(self) -> Mapping[str, str]:
        """Shards of the manifest with features that the champion has not described; nothing without
        a champion. Imported features are not shards of the manifest; the index describes them
        itself."""
        keys = set(self.keys)
        undescribed, _ = self._index
        return {key: digest for key, digest in undescribed.items() if key in keys}

    @property
    def index_lacks(self) -> str:
        """Digest of what the index of the champion lacks, "" where it lacks nothing."""
        _, lacking = self._index
        return lacking

    @property
    def is_searchable(self) -> bool:
        """Whether there is a champion, and its index has all features."""
        return self.model is not None and not self.index_lacks

    @cached_property
    def unpaired_shards(self) -> Mapping[str, str]:
        """Shards of the index that the model that answers has not searched for."""
        from hapvr.steps.duplicate_pairs import outdated_pairs

        return outdated_pairs(self.project)

    @cached_property
    def _index(self) -> tuple[dict[str, str], str]:
        from hapvr.steps.search_index import outdated_index

        return ({}, "") if self.model is None else outdated_index(self.project, self.model)

    def stale_shards(self, stage: str, source: str, keys: Iterable[str]) -> dict[str, str]:
        """Those of some shards of a stage that are gone, or whose source is another now, each with
        the digest of the source. Nothing while `forget` is under way, and no shard without frames,
        which other steps make."""
        root = self.project.root
        wanted: dict[str, str] = {}
        if self._is_forgetting:
            return wanted
        listed = list(keys)
        written = self._written_ns(stage, listed)
        for key, stage_written in zip(listed, written, strict=True):
            with suppress(DataError):
                digest = self._digest(source, key)
                if _recorded_input(root.url, stage, key, source, stage_written) != digest:
                    wanted[key] = digest

        return wanted

    @cached_property
    def _is_forgetting(self) -> bool:
        return self.project.root.exists(FORGETTING)

    @cached_property
    def _written(self) -> Mapping[str, tuple[int, ...]]:
        """When the records of videos and of frames were written, by shard."""
        videos = self._written_ns("videos", self.keys)
        frames = self._written_ns("frames", self.keys)
        return dict(zip(self.keys, zip(videos, frames, strict=True), strict=True))

    def _written_ns(self, stage: str, keys: Iterable[str]) -> list[int]:
        """When the records of shards of a stage were written."""
        names = [self.project.shard(stage, key).index_name for key in keys]
        return self.project.root.modified_ns(*names)

    def _digest(self, source: str, key: str) -> str:
        """Of a shard that others are made from. Raises DataError for a shard without frames."""
        root = self.project.root
        if key not in self._digests_of:
            self._digests_of[key] = _digests(root.url, key, self._written[key])
        digests = self._digests_of[key]
        return digests[source] if source in digests else Shard(root, source, key).digest()


@lru_cache(maxsize=10_000)
def _digests(root_url: str, key: str, _written: tuple[int, ...]) -> dict[str, str]:
    """Of the videos and frames of a shard; remembered while neither is written."""
    from hapvr.steps.videos import content_digest

    root = DataRoot(root_url)
    return {
        "videos": content_digest(Shard(root, "videos", key).rows()),
        "frames": frames_digest(Shard(root, "frames", key)),
    }


@lru_cache(maxsize=50_000)
def _recorded_input(root_url: str, stage: str, key: str, source: str, _written: int) -> str | None:
    """The digest of the source that a shard was made of, None for one that is gone; remembered
    while the shard is not written."""
    provenance = Shard(DataRoot(root_url), stage, key).provenance()
    return None if provenance is None else provenance.inputs.get(source)
