"""What is forgotten, as the stores are told; and what of it is written down until it is done."""

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
    """A video that is forgotten."""

    video_id: str
    shard: str
    uri: str
    contents: Sequence[str]
    """SHA-256 of all that its file has held, without those of videos that stay."""
    kept_out: bool
    """Whether it is not listed again while its file is there."""


@dataclass
class Journal:
    """What was begun."""

    videos: Sequence[ForgottenVideo]
    digests: dict[str, list[list[str]]]
    """By the place of a shard, what it was known by before each call that changed it."""


def read_journal(root: DataRoot) -> Journal:
    """Empty if nothing was begun. Raises DamagedError."""
    hint = "remove it, and name again what it names"
    videos: list[ForgottenVideo] = []
    digests: dict[str, list[list[str]]] = {}
    if root.exists(manifest.FORGETTING):
        videos = root.read_json_as(manifest.FORGETTING, list[ForgottenVideo], hint=hint)
    if root.exists(DIGESTS):
        digests = root.read_json_as(DIGESTS, dict[str, list[list[str]]], hint=hint)
    return Journal(videos, digests)


@dataclass(frozen=True)
class Forgetting:
    """What is forgotten."""

    video_ids: frozenset[str]

    shards: Sequence[str]
    """Keys of the shards that have these videos, sorted."""

    values: frozenset[str]
    """Ids, places and contents: whatever holds one of them goes."""

    videos: Sequence[ForgottenVideo]

    journal: Journal

    renamed: dict[str, str]
    """Digest of a shard with the videos -> that of the shard without; filled shard by shard."""

    generated: list[str] = field(default_factory=list)
    """Folders of benchmarks that were removed, to be generated without the videos."""


Forget = Callable[[Project, Forgetting], None]
"""Removes all of some videos from one store; may be repeated."""


def forgetting_of(journal: Journal) -> Forgetting:
    """What a journal says, for the stores."""
    videos = journal.videos
    video_ids = frozenset(video.video_id for video in videos)
    values = set(video_ids)
    for video in videos:
        values.add(video.uri)
        values.update(video.contents)

    shards = sorted({video.shard for video in videos})
    return Forgetting(video_ids, shards, frozenset(values), videos, journal, renamed={})


def mentions(root: DataRoot, name: str, values: Collection[str]) -> bool:
    """Whether a generated benchmark was made of one of these contents."""
    place = f"{CORPUS_FOLDER}/{name}/benchmark.json"
    if not root.exists(place):
        return False
    with root.open(place) as file:
        text = file.read().decode(errors="replace")
    return any(value in text for value in values)
