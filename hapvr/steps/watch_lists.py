"""Step 15: queries that every shard is compared with (asset `watch_matches`).

watch_matches/<shard>/rows.parquet     a row per match of a query with a video of the shard
"""

import json
import os
import re
import shutil
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from hapvr.config import WatchList
from hapvr.errors import DataError, VideoError
from hapvr.files import digest_of, file_sha256, open_regular
from hapvr.progress import Progress, no_progress
from hapvr.scorer.access import limits_from_environment
from hapvr.search.descriptors import ShardIndex, descriptor_shard, searchable
from hapvr.search.duplicates import read_rows, stamp, write_rows
from hapvr.search.marks import read_marks
from hapvr.search.match import Query, printable
from hapvr.settings import ServingConfig
from hapvr.steps.alerts import AlertOutbox
from hapvr.steps.duplicates import outdated_shards, rows_place
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, SearchOptions
from hapvr.video.folders import VIDEO_SUFFIXES
from hapvr.video.sources import is_picture, query_files, read_lines, text_of_path

STAGE = "watch_matches"
LISTS = "watch/lists"
"""A folder per list that was made of the query of a search: its file, named after its SHA-256."""
_SPAN = (
    "query_start_s",
    "query_end_s",
    "video_start_s",
    "video_end_s",
    "query_covered",
    "video_covered",
)
SCHEMA = pa.schema(
    [
        *(
            (name, pa.string())
            for name in ("watch_list", "query", "video_id", "query_sha256", "video_sha256")
        ),
        *((name, pa.float64()) for name in ("similarity", "probability", *_SPAN)),
        *((name, pa.string()) for name in ("verdict", "model", "since")),
    ]
)
"""since: when the pair was found first, ISO 8601, UTC."""


@dataclass(frozen=True)
class WatchQuery:
    """A file of a list, or a list that cannot be read. sha256: "" where it cannot be read. problem:
    of a list."""

    watch_list: WatchList
    path: Path
    sha256: str
    problem: str = ""

    @property
    def name(self) -> str:
        return text_of_path(self.path)


@dataclass(frozen=True)
class WatchMatches:
    """table: matches of one shard, see SCHEMA. failed: query -> why it could not be used. done:
    False if the matches were there already. announced: messages that were new to the outbox."""

    table: pa.Table
    done: bool
    announced: int
    failed: dict[str, str]


def watch_lists(project: Project) -> list[WatchList]:
    """Those of the configuration, and those of `make_watch_list`."""
    root = project.root
    names = [one for one in root.list_folders(LISTS) if root.list_files(f"{LISTS}/{one}")]
    made = [
        WatchList.model_construct(name=one, path=root.url_of(f"{LISTS}/{one}")) for one in names
    ]
    return [*project.config.watch.lists, *made]


def make_watch_list(project: Project, query: Query, file: Path, *, max_bytes: int) -> str:
    """Make a list of the query of a search, with a copy of its file; returns the name of the list.
    Raises VideoError `replaced` for a file that is not the one that was searched for, or has more
    than max_bytes, and DataError where the data root is not a local folder or is full."""
    root, suffix = project.root, Path(query.name).suffix.lower()
    root.local_path(LISTS)
    if (
        not os.path.isfile(file)
        or file.stat().st_size > max_bytes
        or file_sha256(file) != query.sha256
    ):
        said = (
            f"the file of {query.name} is not at hand, is another one now, or has more "
            f"than {max_bytes} bytes"
        )
        raise VideoError(
            "replaced", f"watch: {said}; search for it again, or name its folder under watch.lists"
        )
    words = re.sub(r"[^a-z0-9]+", "-", Path(query.name).stem.lower())[:40].strip("-")
    name = f"{words or 'query'}-{query.sha256[:8]}"
    known = suffix in VIDEO_SUFFIXES or is_picture(Path(query.name))
    with (
        root.write(f"{LISTS}/{name}/{query.sha256}{suffix if known else '.mp4'}") as copy,
        open_regular(file) as source,
    ):
        shutil.copyfileobj(source, copy)
    return name


@lru_cache(maxsize=10_000)
def _digest(file: Path, _num_bytes: int, _modified_ns: int) -> str:
    """SHA-256 of a file, asked for at every tick: it is remembered while size and time stay."""
    return file_sha256(file)


def watch_queries(project: Project) -> list[WatchQuery]:
    """All queries of all lists, also files and lists that cannot be read."""
    queries = []
    for one in watch_lists(project):
        path = project.path(Path(one.path))
        try:
            base = path.parent
            files = (
                query_files(path)
                if path.is_dir()
                else [base / line for line in read_lines(path, folder=base)]
            )
            if not files:  # as of a drive that is away
                raise ValueError("it has no video and no picture")
        except (OSError, ValueError, DataError) as error:
            said = (
                f"{path} cannot be read ({error}); wanted a folder, or a text file with a "
                "path in each line"
            )
            queries.append(WatchQuery(one, path, "", f"watch.lists: {one.name}: {said}"))
            continue
        for file in files:
            sha256 = ""
            with suppress(OSError, ValueError):  # the search says why it cannot be read
                sha256 = _digest(file, (status := file.stat()).st_size, status.st_mtime_ns)
            queries.append(WatchQuery(one, file, sha256))
    return queries


def make_watch_matches(
    project: Project, searcher: Searcher, key: str, *, progress: Progress = no_progress
) -> WatchMatches:
    """Compare with a shard of the index all queries that were not compared with it yet. Matches are
    put into the outbox where `watch.webhook` is set: each (list, content of the query, content of
    the video) only once, and none of a model with random weights. Raises DataError for a shard that
    is not in the index, and for a model without calibration.
    """
    root, queries, place = project.root, _asked(project), rows_place(STAGE, key)
    searched, wanted = (
        searcher.fingerprint(STAGE, key),
        searcher.fingerprint(STAGE, key, **_stamp(project, queries)),
    )
    failed: dict[str, str] = {}
    with root.lock(f"{STAGE}/{key}"):
        table = read_rows(root, place, SCHEMA, damaged=True)
        if done := stamp(table) != wanted:
            # the shard alone, compared exactly: no other shard's video takes a place among the
            # nearest
            described = searchable(descriptor_shard(root, searcher.current.digest, key))
            count = len(searcher.collection.video_ids(key))
            within = replace(searcher, index=ShardIndex(described), num_videos=count)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            stored, rows, compared = (
                defaultdict[tuple[str, str], list[Any]](list),
                list[dict[str, Any]](),
                list[str](),
            )
            for row in table.to_pylist():
                for asked in ("", row["query"]):
                    stored[row["watch_list"], asked].append(row)
            since = {_event(row): row["since"] for row in table.to_pylist()}
            before = set(
                stamp(table, "queries").split() if stamp(table, "searched") == searched else ()
            )
            for number, (name, query) in enumerate(queries.items()):
                progress(number, len(queries))
                known = stored[query.watch_list.name, "" if query.problem else query.name]
                try:
                    limits = limits_from_environment(project.config.serving)
                    rows += known if name in before else _compare(within, query, limits)
                    compared.append(name)
                except (VideoError, DataError) as error:
                    failed[f"{query.watch_list.name}: {query.name}"] = printable(str(error))
                    rows += known
            progress(len(queries), len(queries))
            table = pa.Table.from_pylist(
                [row | {"since": since.get(_event(row), now)} for row in rows], schema=SCHEMA
            )
        wished = project.config.watch.webhook is not None and not searcher.scorer.warning
        messages = {}
        for row in table.to_pylist() if wished else ():
            name = digest_of(_event(row))[:32]
            messages[name] = json.dumps(
                {"id": name, "event": "watch_match", **row}, ensure_ascii=False
            )
        alerts = AlertOutbox(root).put(messages) if wished else 0
        # after the outbox, so that a kill between them loses no match; queries that failed are
        # tried again
        if done:
            made = {
                "fingerprint": "" if failed else wanted,
                "searched": searched,
                "queries": " ".join(compared),
            }
            write_rows(root, place, table, **made)
    return WatchMatches(table, done, alerts, failed)


def unwatched_shards(project: Project) -> dict[str, str]:
    """Shards of the index that were not compared with the present queries by its model, each with a
    digest of what asks for it."""
    queries = _asked(project)
    return outdated_shards(project, STAGE, SCHEMA, **_stamp(project, queries)) if queries else {}


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


def _asked(project: Project) -> dict[str, WatchQuery]:
    """All queries, each by a digest of what its matches depend on in addition to the index: what it
    is, and what people said."""
    said = defaultdict[str, list[list[str]]](list)
    for verdict in read_marks(project.root).verdicts():
        for content in verdict[:2]:
            said[content].append(verdict)
    asked = {}
    for one in watch_queries(project):
        kind = [one.watch_list.name, one.watch_list.min_probability, one.name, one.sha256]
        asked[digest_of([kind, said[one.sha256]])] = one
    return asked


def _stamp(project: Project, queries: Iterable[str]) -> dict[str, Any]:
    """What a finished shard was compared with, and whether matches found before are posted."""
    return {"queries": list(queries), "posted": project.config.watch.webhook is not None}


def _compare(within: Searcher, query: WatchQuery, limits: ServingConfig) -> list[dict[str, Any]]:
    """Rows of one query. Raises VideoError and DataError where it cannot be used."""
    if query.problem:
        raise DataError(query.problem)
    options = SearchOptions(
        top=max(within.num_videos, 1), min_probability=query.watch_list.min_probability
    )
    rows, asked = [], within.read(query.path, limits=limits)
    answer = within.answer(asked, options)
    for said in asked.warnings:
        warnings.warn(f"{query.watch_list.name}: {said}")
    if answer.warnings != (*within.warnings, *asked.warnings):  # some videos could not be compared
        raise DataError(answer.warnings[-1])
    for match in answer.matches:
        span: tuple[float | None, ...] = (None,) * 4
        if match.segments:
            one = match.segments[0]
            span = one.query_start_s, one.query_end_s, one.reference_start_s, one.reference_end_s
        row: dict[str, Any] = dict(
            zip(_SPAN, (*span, match.query_covered, match.reference_covered), strict=True)
        )
        row |= {name: getattr(match, name) for name in ("similarity", "probability", "verdict")}
        row |= {
            "watch_list": query.watch_list.name,
            "query": query.name,
            "query_sha256": query.sha256,
        }
        sha256 = within.collection.metadata.of(match.reference).sha256
        rows.append(
            row | {"video_id": match.reference, "video_sha256": sha256, "model": within.model}
        )
    return rows


def _event(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """What makes a match the same one as before."""
    return row["watch_list"], row["query_sha256"], row["video_sha256"]
