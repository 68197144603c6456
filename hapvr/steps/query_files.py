"""Queries from files, still pictures and addresses."""

from pathlib import Path

from hapvr.errors import VideoError
from hapvr.files import file_sha256
from hapvr.scorer.access import Access, Deadline
from hapvr.scorer.scorer import VideoScorer
from hapvr.search.match import Query, printable
from hapvr.settings import ServingConfig


def read_query(
    scorer: VideoScorer,
    query: str | Path,
    *,
    name: str | None,
    access: Access | None,
    limits: ServingConfig | None,
    deadline: Deadline,
) -> Query:
    """A file, a still picture or an http(s) URL as a query, see `Searcher.read`."""
    place = str(query)
    with scorer.open_videos(
        [place], access=access, limits=limits, deadline=deadline, crops=True
    ) as videos:
        features = videos.get(place)

    digest = "" if "://" in place else _digest(place, access or Access())
    return Query(name=name or printable(place), features=features, sha256=digest)


def _digest(place: str, access: Access) -> str:
    """SHA-256 of a file. Raises VideoError where it is gone."""
    try:
        return file_sha256(access.local_path(place))
    except OSError as error:
        raise VideoError(
            "missing_file", f"video: {place} went away while it was read ({error.strerror})"
        ) from error
