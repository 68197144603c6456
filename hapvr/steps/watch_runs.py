"""A run of the watch lists: it compares every shard that was not compared with the present queries,
and posts the matches. Also what people do with lists that were made of a search."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from hapvr.errors import ArgumentError
from hapvr.progress import Progress
from hapvr.steps.alerts import Delivery, deliver_alerts
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.shard_rows import rows_place
from hapvr.steps.watch_lists import STAGE, make_watch_matches, unwatched_shards
from hapvr.steps.watch_queries import LISTS, watch_queries


@dataclass(frozen=True, kw_only=True)
class WatchRun:
    """What a run of the watch lists did."""

    shards: tuple[str, ...]
    """those that were compared"""
    delivery: Delivery
    failed: dict[str, str] = field(default_factory=dict)
    """Query -> why it could not be used."""

    @property
    def problems(self) -> list[str]:
        """What a person should know: a sentence for each query that could not be used, and one
        where the webhook did not take what was found."""
        sentences = [
            f"{name} could not be compared: {reason}" for name, reason in self.failed.items()
        ]
        if self.delivery.problem:
            sentences.append(
                f"the webhook did not take what was found ({self.delivery.problem}); messages that "
                f"wait for the next run: {self.delivery.waiting}"
            )

        return sentences


def run_watch_lists(
    project: Project,
    bar: Callable[[str], AbstractContextManager[Progress]],
    *,
    searcher: Searcher | None = None,
) -> WatchRun:
    """Compare the lists with what is new, and post the matches that wait. Without a list it only
    posts.

    searcher: of the index; if none is given, one is opened once something has to be compared."""
    keys = tuple(unwatched_shards(project))
    failed: dict[str, str] = {}
    for key in keys:
        searcher = searcher or Searcher.open(project)
        with bar("comparing with the watch lists") as progress:
            failed |= make_watch_matches(project, searcher, key, progress=progress).failed

    return WatchRun(shards=keys, failed=failed, delivery=deliver_alerts(project))


def last_run_s(project: Project) -> float | None:
    """When a shard was last compared with the lists, in seconds since 1970; None if none ever
    was."""
    root = project.root
    places = [rows_place(STAGE, key) for key in root.list_folders(STAGE)]
    written_ns = [time_ns for time_ns in root.modified_ns(*places) if time_ns]
    return max(written_ns) / 1e9 if written_ns else None


def remove_watch_list(project: Project, name: str) -> None:
    """Remove a list that was made of a search, with its copy of the query. Raises ArgumentError for
    another list."""
    if name not in project.root.list_folders(LISTS):
        raise ArgumentError(
            f"watch: {name!r:.200} is not a list that was made from a search; those of the "
            "configuration are removed there, under watch.lists"
        )

    project.root.delete_folder(f"{LISTS}/{name}")


def query_file(project: Project, sha256: str) -> Path | None:
    """The file in a list that has this content; None if no list has it any more."""
    for query in watch_queries(project):
        if query.sha256 == sha256:
            return query.path
    return None
