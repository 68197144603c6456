"""Step 15: queries that every shard is compared with (asset `watch_matches`).

watch_matches/<shard>/rows.parquet     a row per match of a query of a watch list with a video of the shard
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hapvr.config import WatchList
from hapvr.data.filesystem import DataRoot, read_schema_metadata
from hapvr.errors import ConfigError, DamagedError, DataError, VideoError
from hapvr.files import require_regular
from hapvr.progress import Progress, no_progress
from hapvr.provenance import file_sha256
from hapvr.scorer.videos import is_picture
from hapvr.search.current import CURRENT, current_index
from hapvr.search.marks import read_marks
from hapvr.search.query import printable
from hapvr.steps.alerts import AlertOutbox
from hapvr.steps.duplicates import GROUPS_PLACE
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, SearchOptions, search_fingerprint
from hapvr.tables import read_table, write_table
from hapvr.video.sources import VIDEO_SUFFIXES, text_of_path

STAGE = "watch_matches"
FINGERPRINT = b"hapvr.fingerprint"
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
        ("since", pa.string()),
    ]
)
"""since: when the pair was found first, ISO 8601, UTC."""


@dataclass(frozen=True)
class WatchQuery:
    """A file, or a video of the collection (path None), of a list. problem: why the file cannot be read, if so."""

    watch_list: WatchList
    name: str
    sha256: str
    path: Path | None
    problem: str = ""


@dataclass(frozen=True)
class WatchMatches:
    """table: matches of one shard, see SCHEMA. failed: query -> why it could not be used. done: False if the matches were
    there already. announced: messages that were new to the outbox."""

    key: str
    table: pa.Table
    place: str
    done: bool
    announced: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def watch_queries(project: Project) -> list[WatchQuery]:
    """All queries of all lists, also files that cannot be read. Raises ConfigError for a path or group that is not there."""
    return [query for one in project.config.watch.lists for query in _queries(project, one)]


def make_watch_matches(
    project: Project, searcher: Searcher, key: str, *, progress: Progress = no_progress
) -> WatchMatches:
    """Compare all queries with a shard of the index; one that is unchanged is left alone.

    The shard's own descriptors are compared exactly, so that other shards, however alike, take no place among the nearest.
    Matches are put into the outbox where `watch.webhook` is set: each (list, content of the query, content of the video)
    only once. Raises DataError for a shard that is not in the index, and for a model without calibration.
    """
    queries, place = watch_queries(project), _place(key)
    wanted = searcher.fingerprint(STAGE, key, **_asked(project, queries))
    failed: dict[str, str] = {}
    with project.root.lock(f"{STAGE}/{key}"):
        stored = _stored(project.root, place)
        done = stored is None or stored[0] != wanted
        if stored is not None and not done:
            table = stored[1]
        else:
            within = searcher.within(key)
            since = {} if stored is None else {_event(row): row["since"] for row in stored[1].to_pylist()}
            now = datetime.now(UTC).isoformat(timespec="seconds")
            rows: list[dict[str, Any]] = []
            for number, query in enumerate(queries):
                progress(number, len(queries))
                problem = query.problem
                try:
                    rows += [] if problem else _compare(searcher, within, query)
                except (VideoError, DataError) as error:
                    problem = str(error)
                if problem:
                    failed[f"{query.watch_list.name}: {query.name}"] = printable(problem)
            progress(len(queries), len(queries))
            table = pa.Table.from_pylist([row | {"since": since.get(_event(row), now)} for row in rows], schema=SCHEMA)
            # A query that failed is tried again by the next run.
            metadata = {FINGERPRINT: b"" if failed else wanted.encode()}
            with project.root.write(place) as stream:
                write_table(table.replace_schema_metadata(metadata), stream)
    announced = AlertOutbox(project.root).put(_messages(table)) if project.config.watch.webhook is not None else 0
    return WatchMatches(key, table, place, done, announced, failed)


def unwatched_shards(project: Project) -> dict[str, str]:
    """Shards of the index that were not compared with the present queries by its model, each with a digest of what asks
    for it. Raises as `watch_queries` does."""
    queries = watch_queries(project)
    if not queries or not project.root.exists(CURRENT):
        return {}
    current = current_index(project.root)
    shards = current.open(project.root, project.config.search).status().shards
    found, asked = {}, _asked(project, queries)
    for key, entry in sorted(shards.items()):
        wanted = search_fingerprint(STAGE, project, current, key, entry.digest, **asked)
        stored = _stored(project.root, _place(key))
        if stored is None or stored[0] != wanted:
            found[key] = hashlib.sha256(f"{wanted} {current.since}".encode()).hexdigest()
    return found


def all_matches(project: Project) -> list[dict[str, Any]]:
    """The matches of all shards, rows as of SCHEMA, the surest first."""
    places = [_place(key) for key in project.root.list_folders(STAGE)]
    tables = [stored[1] for place in places if (stored := _stored(project.root, place)) is not None]
    order = [("probability", "descending"), *((name, "ascending") for name in ("watch_list", "query", "video_id"))]
    rows: list[dict[str, Any]] = pa.concat_tables([SCHEMA.empty_table(), *tables]).sort_by(order).to_pylist()
    return rows


def _place(key: str) -> str:
    return f"{STAGE}/{key}/rows.parquet"


def _queries(project: Project, one: WatchList) -> list[WatchQuery]:
    if one.group is not None:
        return _members(project, one, one.group)
    path = project.path(Path(str(one.path)))
    try:
        if path.is_dir():
            files = sorted(
                file for file in path.rglob("*") if file.suffix.lower() in VIDEO_SUFFIXES or is_picture(file.name)
            )
        else:
            require_regular(path)
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
            files = [path.parent / line for line in lines if line and not line.startswith("#")]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"watch.lists: {one.name}: {path} cannot be read ({error}); wanted a folder, or a text file with a path in each line"
        ) from error
    return [_file(one, file) for file in files]


def _file(one: WatchList, file: Path) -> WatchQuery:
    try:
        require_regular(file)
        return WatchQuery(one, text_of_path(file), file_sha256(file), file)
    except (OSError, ValueError) as error:
        return WatchQuery(one, text_of_path(file), "", file, problem=f"{file} cannot be read ({error})")


def _members(project: Project, one: WatchList, group: str) -> list[WatchQuery]:
    rows: list[dict[str, Any]] = []
    if project.root.exists(GROUPS_PLACE):
        with (
            project.root.open(GROUPS_PLACE) as file,
            project.root.corruption_errors(GROUPS_PLACE, hint="run `hapvr duplicates`"),
        ):
            members = read_table(pa.BufferReader(file.read())).filter(pc.field("group") == group)
        rows = members.sort_by("video_id").to_pylist()
    if not rows:
        raise ConfigError(f"watch.lists: {one.name}: there is no group {group!r}; `hapvr duplicates` lists them")
    return [WatchQuery(one, row["video_id"], row["sha256"], None) for row in rows]


def _asked(project: Project, queries: Sequence[WatchQuery]) -> dict[str, object]:
    """What matches depend on in addition to the index: queries and marks."""
    asked = [[one.watch_list.name, one.watch_list.min_probability, one.name, one.sha256] for one in queries]
    return {"queries": asked, "marks": read_marks(project.root).verdicts()}


def _stored(root: DataRoot, place: str) -> tuple[str, pa.Table] | None:
    """Fingerprint and matches; None where there are none, or where they are damaged and have to be made again."""
    try:
        return _read(root, place) if root.exists(place) else None
    except DamagedError:
        return None


def check_watch_matches(root: DataRoot, key: str) -> None:
    """Raise DamagedError if the matches of a shard cannot be read."""
    _read(root, _place(key))


def _read(root: DataRoot, place: str) -> tuple[str, pa.Table]:
    with root.open(place) as file, root.corruption_errors(place, hint="run `hapvr watch` again"):
        table = read_table(pa.BufferReader(file.read()))
        return read_schema_metadata(table.schema, FINGERPRINT), table.select(SCHEMA.names).cast(SCHEMA)


def _compare(searcher: Searcher, within: Searcher, query: WatchQuery) -> list[dict[str, Any]]:
    """Rows of one query. Raises VideoError and DataError where it cannot be used."""
    read = searcher.read_id(query.name) if query.path is None else searcher.read(query.path)
    options = SearchOptions(top=max(within.num_videos, 1), min_probability=query.watch_list.min_probability)
    rows = []
    for match in within.answer(read, options).matches:
        first = match.segments[0] if match.segments else None
        rows.append(
            {
                "watch_list": query.watch_list.name,
                "query": query.name,
                "video_id": match.reference,
                "query_sha256": query.sha256,
                "video_sha256": searcher.collection.metadata.of(match.reference).sha256,
                "similarity": match.similarity,
                "probability": match.probability,
                "query_start_s": first and first.query_start_s,
                "query_end_s": first and first.query_end_s,
                "video_start_s": first and first.reference_start_s,
                "video_end_s": first and first.reference_end_s,
                "query_covered": match.query_covered,
                "video_covered": match.reference_covered,
            }
        )
    return rows


def _event(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """What makes a match the same one as before."""
    return row["watch_list"], row["query_sha256"], row["video_sha256"]


def _messages(table: pa.Table) -> Mapping[str, str]:
    """Id -> JSON of every match."""
    messages = {}
    for row in table.to_pylist():
        name = hashlib.sha256(json.dumps(_event(row)).encode()).hexdigest()[:32]
        messages[name] = json.dumps({"id": name, "event": "watch_match", **row}, ensure_ascii=False)
    return messages
