"""Step 15: queries that every shard is compared with (asset `watch_matches`).

watch_matches/<shard>/rows.parquet     a row per match of a query with a video of the shard
"""

import json
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from hapvr.data.manifest import forgotten_of
from hapvr.data.stamped import read_rows, stamp, write_rows
from hapvr.errors import DataError, VideoError
from hapvr.files import digest_of
from hapvr.progress import Progress, no_progress
from hapvr.scorer.access import limits_from_environment
from hapvr.search.collection import CollectionMetadata
from hapvr.search.descriptors import descriptor_shard, searchable
from hapvr.search.marks import read_marks
from hapvr.search.match import Match, printable
from hapvr.search.memory_index import FramesInMemory
from hapvr.settings import ServingConfig
from hapvr.steps.alerts import AlertOutbox
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, SearchOptions
from hapvr.steps.shard_rows import outdated_shards, rows_place
from hapvr.steps.watch_queries import WatchQuery, watch_lists, watch_queries

STAGE = "watch_matches"
SCHEMA = pa.schema(
    [
        ("watch_list", pa.string()),
        ("query", pa.string()),
        ("video_id", pa.string()),
        ("query_sha256", pa.string()),
        ("video_sha256", pa.string()),
        ("similarity", pa.float64()),
        ("probability", pa.float64()),
        ("query_start_s", pa.float64()),
        ("query_end_s", pa.float64()),
        ("video_start_s", pa.float64()),
        ("video_end_s", pa.float64()),
        ("query_covered", pa.float64()),
        ("video_covered", pa.float64()),
        ("verdict", pa.string()),
        ("model", pa.string()),
        ("since", pa.string()),
    ]
)
"""since: when the pair was first found, ISO 8601, UTC."""

Row = dict[str, Any]
"""A match, as of SCHEMA."""


@dataclass(frozen=True)
class WatchMatches:
    """The matches of one shard, and what the step did."""

    table: pa.Table
    """see SCHEMA"""
    done: bool
    """False if the matches were there already"""
    announced: int
    """messages that were new to the outbox"""
    failed: dict[str, str]
    """query -> why it could not be used"""


def make_watch_matches(
    project: Project, searcher: Searcher, key: str, *, progress: Progress = no_progress
) -> WatchMatches:
    """Compare with a shard of the index all queries that were not compared with it yet. If
    `watch.webhook` is set, matches are put into the outbox: each (list, content of the query,
    content of the video) only once, and none from a model with random weights.

    Raises: DataError for a shard that is not in the index, and for a model without calibration.
    """
    root = project.root
    place = rows_place(STAGE, key)
    queries = _asked(project)
    searched = searcher.fingerprint(STAGE, key)
    fingerprint = searcher.fingerprint(STAGE, key, **_stamp(project, queries))
    is_posting = project.config.watch.webhook is not None and not searcher.scorer.warning
    with root.lock(f"{STAGE}/{key}"):
        table = read_rows(root, place, SCHEMA, damaged=True)
        if stamp(table) == fingerprint:
            announced = _announce(searcher, table) if is_posting else 0
            return WatchMatches(table, False, announced, {})

        before = stamp(table, "queries").split() if stamp(table, "searched") == searched else []
        comparison = _Comparison(_within_shard(searcher, key), table.to_pylist(), set(before))
        for number, (name, query) in enumerate(queries.items()):
            progress(number, len(queries))
            comparison.take(name, query)

        progress(len(queries), len(queries))
        lists = {watch_list.name for watch_list in watch_lists(project)}
        rows = _of_what_is_left(project, key, comparison.rows_with_dates(), lists)
        compared = [name for name in comparison.compared if queries[name].watch_list.name in lists]
        is_whole = not comparison.failed and len(compared) == len(comparison.compared)
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        announced = _announce(searcher, table) if is_posting else 0
        # after the outbox, so that a kill in between loses no match; failed queries are tried
        # again, and so are those of a list that was removed meanwhile, if it comes back
        write_rows(
            root,
            place,
            table,
            fingerprint=fingerprint if is_whole else "",
            searched=searched,
            queries=" ".join(compared),
        )

    return WatchMatches(table, True, announced, comparison.failed)


def _of_what_is_left(
    project: Project, key: str, rows: Sequence[Row], lists: Collection[str]
) -> list[Row]:
    """The matches of which neither video nor list was forgotten since the searcher was opened.

    lists: names of the existing lists
    """
    video_ids = {row["video_id"] for row in rows}
    forgotten = forgotten_of(project.root, video_ids, dict.fromkeys(video_ids, key))
    return [row for row in rows if row["watch_list"] in lists and row["video_id"] not in forgotten]


def _within_shard(searcher: Searcher, key: str) -> Searcher:
    """A searcher of this shard alone that compares exactly, so that no other shard's video takes a
    place among the nearest."""
    root = searcher.project.root
    described = searchable(descriptor_shard(root, searcher.current.digest, key))
    count = len(searcher.collection.video_ids(key))
    return replace(searcher, index=FramesInMemory(described), video_index=None, num_videos=count)


class _Comparison:
    """Collects the matches of all queries with a shard, keeping those of queries that were compared
    with it before."""

    def __init__(self, within: Searcher, stored: Sequence[Row], before: Collection[str]) -> None:
        """Start with nothing compared.

        within: searches the shard
        stored: matches found before
        before: digests of the queries of these, see `_asked`
        """
        self.compared: list[str] = []
        """digests of the queries that have been compared by now"""
        self.failed: dict[str, str] = {}
        """query -> why it could not be used"""
        self._rows: list[Row] = []
        self._within = within
        self._stored = stored
        self._before = before

    def take(self, name: str, query: WatchQuery) -> None:
        """Add the matches of a query, or its earlier ones if it cannot be used now.

        name: its digest, see `_asked`
        """
        try:
            if name in self._before:
                self._rows += self._stored_rows(query)
            else:
                limits = limits_from_environment(self._within.project.config.serving)
                self._rows += _compare(self._within, query, limits)

            self.compared.append(name)
        except (VideoError, DataError) as error:
            self.failed[f"{query.watch_list.name}: {query.name}"] = printable(str(error))
            self._rows += self._stored_rows(query)

    def _stored_rows(self, query: WatchQuery) -> list[Row]:
        """The earlier matches of a query; those of its whole list if the list cannot be read."""
        of_list = [row for row in self._stored if row["watch_list"] == query.watch_list.name]
        if query.problem:
            return of_list
        return [row for row in of_list if row["query"] == query.name]

    def rows_with_dates(self) -> list[Row]:
        """All matches, each with the time when it was first found."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        since = {_event(row): row["since"] for row in self._stored}
        return [row | {"since": since.get(_event(row), now)} for row in self._rows]


def _announce(searcher: Searcher, table: pa.Table) -> int:
    """Put a message of each match into the outbox; returns how many are new to it."""
    messages: dict[str, str] = {}
    for row in table.to_pylist():
        name = digest_of(_event(row))[:32]
        clock_note = searcher.collection.metadata.of(row["video_id"]).clock_note
        message = {"id": name, "event": "watch_match", **row, "clock_note": clock_note}
        messages[name] = json.dumps(message, ensure_ascii=False)

    return AlertOutbox(searcher.project.root).put(messages)


def unwatched_shards(project: Project) -> dict[str, str]:
    """Shards that the index's model has not compared with the present queries, each with a digest
    of the reason."""
    queries = _asked(project)
    if not queries:
        return {}
    return outdated_shards(project, STAGE, SCHEMA, **_stamp(project, queries))


def all_matches(project: Project) -> list[dict[str, Any]]:
    """The matches of all shards, rows as of SCHEMA, the surest first."""
    places = [rows_place(STAGE, key) for key in project.root.list_folders(STAGE)]
    rows = [row for place in places for row in read_rows(project.root, place, SCHEMA).to_pylist()]
    return sorted(
        rows,
        key=lambda row: (
            -(row["probability"] or 0),
            row["watch_list"],
            row["query"],
            row["video_id"],
        ),
    )


def clock_notes(project: Project) -> list[str]:
    """What is wrong with the clocks of the videos that were found, a sentence each; videos that
    cannot be read any more are skipped."""
    notes: set[str] = set()
    for key in project.root.list_folders(STAGE):
        rows = read_rows(project.root, rows_place(STAGE, key), SCHEMA).to_pylist()
        shard_of = {row["video_id"]: key for row in rows}
        with suppress(DataError):
            notes |= set(CollectionMetadata(project.root, shard_of).clock_notes(shard_of))

    return sorted(notes)


def _asked(project: Project) -> dict[str, WatchQuery]:
    """All queries, each by a digest of what its matches depend on besides the index: its content,
    and people's marks."""
    verdicts: dict[str, list[list[str]]] = defaultdict(list)
    for verdict in read_marks(project.root).verdicts():
        for content in verdict[:2]:
            verdicts[content].append(verdict)

    asked: dict[str, WatchQuery] = {}
    for query in watch_queries(project):
        watch_list = query.watch_list
        values = [watch_list.name, watch_list.min_probability, query.name, query.sha256]
        asked[digest_of([values, verdicts[query.sha256]])] = query

    return asked


def _stamp(project: Project, queries: Iterable[str]) -> dict[str, Any]:
    """The stamp of a finished shard: the queries it was compared with, and whether its matches were
    posted."""
    return {"queries": list(queries), "posted": project.config.watch.webhook is not None}


def _compare(within: Searcher, query: WatchQuery, limits: ServingConfig) -> list[Row]:
    """The rows of one query. Raises VideoError and DataError if it cannot be used."""
    if query.problem:
        raise DataError(query.problem)
    options = SearchOptions(
        top=max(within.num_videos, 1), min_probability=query.watch_list.min_probability
    )
    asked = within.read(query.path, limits=limits)
    answer = within.answer(asked, options)
    for warning in asked.warnings:
        warnings.warn(f"{query.watch_list.name}: {warning}")
    clock_notes = within.collection.metadata.clock_notes(
        match.reference for match in answer.matches
    )
    if answer.warnings != (*within.warnings, *asked.warnings, *clock_notes):
        # some videos could not be compared
        raise DataError(answer.warnings[-1])

    return [_row(within, query, match) for match in answer.matches]


def _row(within: Searcher, query: WatchQuery, match: Match) -> Row:
    """A match in the form in which it is stored; when it was first found is added later."""
    part = match.segments[0] if match.segments else None
    return {
        "watch_list": query.watch_list.name,
        "query": query.name,
        "query_sha256": query.sha256,
        "video_id": match.reference,
        "video_sha256": within.collection.metadata.of(match.reference).sha256,
        "similarity": match.similarity,
        "probability": match.probability,
        "query_start_s": None if part is None else part.query_start_s,
        "query_end_s": None if part is None else part.query_end_s,
        "video_start_s": None if part is None else part.reference_start_s,
        "video_end_s": None if part is None else part.reference_end_s,
        "query_covered": match.query_covered,
        "video_covered": match.reference_covered,
        "verdict": match.verdict,
        "model": within.model,
    }


def _event(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """What identifies a match: two with equal values are the same."""
    return row["watch_list"], row["query_sha256"], row["video_sha256"]
