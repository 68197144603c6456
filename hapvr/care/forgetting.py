"""What the stores are told to forget, and the record of it that is kept until all is done."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from hapvr.data import manifest
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import MANIFEST_STAGE
from hapvr.steps.project import Project
from hapvr.steps.sources import CORPUS_FOLDER

DIGESTS = f"{MANIFEST_STAGE}/forgetting-digests.json"


@dataclass(frozen=True)
class ForgottenVideo:
    """A video to be forgotten."""

    video_id: str
    shard: str
    uri: str
    contents: Sequence[str]
    """SHA-256 of every content that its file has had, without those of videos that stay."""
    kept_out: bool
    """Whether it stays unlisted even while its file is there."""


@dataclass
class Journal:
    """What `hapvr forget` has begun."""

    videos: Sequence[ForgottenVideo]
    digests: dict[str, list[list[str]]]
    """By the place of a shard, the digests by which it was known before each call that changed
    it."""


def read_journal(root: DataRoot) -> Journal:
    """Empty if nothing was begun. Raises DamagedError."""
    hint = "remove it, and name the same videos again"
    videos: list[ForgottenVideo] = []
    digests: dict[str, list[list[str]]] = {}
    if root.has_record(manifest.FORGETTING):
        videos = root.read_json_as(manifest.FORGETTING, list[ForgottenVideo], hint=hint)
    if root.has_record(DIGESTS):
        digests = root.read_json_as(DIGESTS, dict[str, list[list[str]]], hint=hint)
    return Journal(videos, digests)


@dataclass(frozen=True)
class Forgetting:
    """What a store has to forget."""

    video_ids: frozenset[str]

    shards: Sequence[str]
    """Keys of the shards that have these videos, sorted."""

    values: frozenset[str]
    """Ids, places and contents: whatever holds one of them is removed."""

    videos: Sequence[ForgottenVideo]

    journal: Journal

    renamed: dict[str, str]
    """Digest of a shard with the videos -> digest of the shard without them; filled shard by
    shard."""

    generated: list[str] = field(default_factory=list)
    """Folders of benchmarks that were removed, so that they are generated again without the
    videos."""


Forget = Callable[[Project, Forgetting], None]
"""Removes everything about some videos from one store; may be repeated."""


def forgetting_of(journal: Journal) -> Forgetting:
    """What the stores have to forget by a journal."""
    videos = journal.videos
    video_ids = frozenset(video.video_id for video in videos)
    values = set(video_ids)
    for video in videos:
        values.add(video.uri)
        values.update(video.contents)

    shards = sorted({video.shard for video in videos})
    return Forgetting(video_ids, shards, frozenset(values), videos, journal, renamed={})


def mentions(root: DataRoot, name: str, values: Collection[str]) -> bool:
    """Whether a generated benchmark was made from one of these contents."""
    place = f"{CORPUS_FOLDER}/{name}/benchmark.json"
    if not root.exists(place):
        return False
    with root.open(place) as file:
        text = file.read().decode(errors="replace")
    return any(value in text for value in values)
