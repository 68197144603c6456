"""A query as it is answered, and what speaks against believing the answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.search.collection import SearchableCollection
from hapvr.search.confidence import Confidence
from hapvr.search.engine import Lost
from hapvr.search.match import Match, Query, printable
from hapvr.search.options import SearchOptions
from hapvr.video.settings import SamplingConfig
from hapvr.video.sources import is_inside

UNTRAINED_INCIDENTS = (
    "nothing was trained on this collection, so other footage of an incident is ranked by the "
    "similarity of its frames alone, without saying how sure that is"
)

BY_WHOLE_VIDEOS = (
    "candidates were chosen by one vector of each video, which does not find a short part of a "
    "long one; with `search.first_stage: frames` a search does"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """A query as it is answered."""

    query: Query
    options: SearchOptions
    views: tuple[EmbeddedVideo, ...]
    """embeddings of its whole picture and of parts of it"""
    seconds: float
    """how long the searched part lasts"""
    confidence: Confidence


def seconds_of(view: EmbeddedVideo, options: SearchOptions, sampling: SamplingConfig) -> float:
    """How long the searched part of a query lasts."""
    if options.part is None:
        return view.clock.length_s(sampling.fps, sampling.max_frames)
    first_s, last_s = view.clock.span_s(0, -1, sampling.fps)
    return last_s - first_s


def notes_of(
    asked: Question,
    matches: Sequence[Match],
    lost: Lost,
    collection: SearchableCollection,
    *,
    untrained: bool,
    by_videos: bool,
) -> list[str]:
    """What speaks against believing an answer, a sentence each.

    lost: videos that could not be compared
    untrained: whether the model is the baseline
    by_videos: whether the candidates are those of an index of videos
    """
    notes = collection.metadata.clock_notes(match.reference for match in matches)
    if asked.options.incidents and untrained:
        notes.append(UNTRAINED_INCIDENTS)
    if by_videos:
        notes.append(BY_WHOLE_VIDEOS)
    if lost:
        notes.append(note_of_lost(lost))

    folder = asked.options.folder
    has_folder = any(is_inside(video_id, folder) for video_id in collection.shard_of)
    if folder and not has_folder:
        notes.append(
            f"no video of the collection has the id {printable(folder)} or is in that folder"
        )

    return notes


def note_of_lost(lost: Lost) -> str:
    """A sentence about videos that could not be compared."""
    name, reason = min(lost.items())
    return (
        f"{len(lost)} videos of the index could not be compared, e.g. {name}: {reason}; "
        "`hapvr index update` forgets videos that are gone"
    )
