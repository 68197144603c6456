"""A benchmark and its folder: queries, a database, labelled pairs, and the tasks measured on them.

benchmark.json names the kind, from which the tasks follow. videos.parquet holds video_id and role
(query, database, both); labels and exclusions are the tables of `BenchmarkDefinition`.

`clips` benchmarks, made by the demo or from a user's own videos, have their files under videos/,
and segments. Their videos.parquet also holds path (relative to the folder), group and edit; a
video's id is "<benchmark name>/<path relative to videos/>". Tasks are FIVR's, for the labels ND,
DS, CS, IS that occur.
"""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mode
from typing import Annotated, Any

import polars as pl
from pydantic import BaseModel, Field

from hapvr.benchmark.shipped import SHIPPED
from hapvr.benchmark.tasks import CLIPS, TASKS, Task, measurable_tasks
from hapvr.errors import DamagedError, DataError
from hapvr.files import read_json_as, write_atomic, write_text
from hapvr.tables import TABLE_ERRORS, read_frame, write_table

LABEL_SCHEMA = {"query_id": pl.String, "reference_id": pl.String, "label": pl.String}
TIME_COLUMNS = ("query_start_s", "query_end_s", "reference_start_s", "reference_end_s")
SEGMENT_SCHEMA = {
    "query_id": pl.String,
    "reference_id": pl.String,
    **dict.fromkeys(TIME_COLUMNS, pl.Float64),
}
EXCLUSION_SCHEMA = {"exclusion": pl.String, "query_id": pl.String, "reference_id": pl.String}
EVENT_SCHEMA = {"query_id": pl.String, "event": pl.String}
VIDEO_SCHEMA = dict.fromkeys(("video_id", "path", "role", "group", "edit"), pl.String)


@dataclass(frozen=True, kw_only=True, eq=False)
class BenchmarkDefinition:
    """Queries, database and labelled pairs of one benchmark. The constructor checks them.

    Raises:
        DataError: ids repeat, a label or segment names an unknown video, or a segment does not end
            after it begins."""

    name: str
    queries: tuple[str, ...]
    database: tuple[str, ...]
    labels: pl.DataFrame
    """LABEL_SCHEMA; a pair may carry several labels, a pair without one is a negative."""
    tasks: tuple[Task, ...]
    exclusions: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=EXCLUSION_SCHEMA))
    """EXCLUSION_SCHEMA: the name of the list, and a query, or null for every query."""
    segments: pl.DataFrame | None = None
    """SEGMENT_SCHEMA, every stretch of a query that a database video shows, and where it does;
    None: not known."""
    videos: pl.DataFrame | None = None
    """VIDEO_SCHEMA, with paths relative to `folder`, for a benchmark with files; else None."""
    folder: Path | None = None
    events: dict[str, str] = field(default_factory=dict)
    """The event of each query; mAP is then also reported event by event (EVVE)."""
    provenance: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if problem := next(self._problems(), None):
            raise DataError(f"benchmark {self.name}: {problem}")

    def _problems(self) -> Iterator[str]:
        if not self.queries or not self.database:
            yield (
                f"{len(self.queries)} queries and {len(self.database)} database videos; it "
                "needs at least one of each"
            )

        yield from self._id_problems("queries", "query_id", self.queries)
        yield from self._id_problems("database", "reference_id", self.database)
        if self.labels.is_duplicated().any():
            yield "some labels are given twice; keep each (pair, label) once"
        if self.segments is not None:
            wrong = self.segments.filter(~_are_stretches())
            if len(wrong):
                yield (
                    f"{len(wrong)} segments are not stretches of time, e.g. {wrong.row(0)}; "
                    "give begins before ends, in seconds"
                )

        if not self.tasks:
            yield "no label gives any task a positive pair; check the labels"

    def _id_problems(self, role: str, column: str, ids: tuple[str, ...]) -> Iterator[str]:
        """role: "queries" or "database", whose ids are in a column of labels and segments."""
        distinct = set(ids)
        if len(distinct) < len(ids):
            yield f"some ids of its {role} are repeated, e.g. {mode(ids)!r}; list every video once"

        tables = {"labels": self.labels}
        if self.segments is not None:
            tables["segments"] = self.segments
        for table_name, table in tables.items():
            unknown = set(table[column].unique()) - distinct
            if unknown:
                yield (
                    f"{len(unknown)} ids in {table_name}.{column} are not in its {role}, e.g. "
                    f"{min(unknown)!r}; add the videos or drop their {table_name}"
                )

    @cached_property
    def video_ids(self) -> tuple[str, ...]:
        """Queries, then the database videos that are not queries."""
        return tuple(dict.fromkeys(self.queries + self.database))


def _are_stretches() -> pl.Expr:
    """Whether rows of segments are stretches of time in both videos."""
    query_start, query_end, reference_start, reference_end = map(pl.col, TIME_COLUMNS)
    is_time = pl.all_horizontal(pl.col(TIME_COLUMNS).is_finite(), pl.col(TIME_COLUMNS) >= 0)
    return is_time & (query_end > query_start) & (reference_end > reference_start)


FORMAT_VERSION = 1
HINT = "write the benchmark again, or install the package again"


class _Head(BaseModel):
    """benchmark.json."""

    kind: Annotated[str, Field(pattern=f"^({'|'.join(TASKS)})$")]
    format_version: Annotated[int, Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)]
    name: Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]{0,199}$")] = ""
    """It also names folders, so it cannot lead elsewhere; if absent, it is the folder's name."""
    provenance: dict[str, Any] = {}


def write_clips(
    folder: Path,
    *,
    name: str,
    videos: Iterable[tuple[str, str, str, str]],
    labels: Iterable[tuple[str, str, str]],
    segments: Iterable[tuple[str, str, float, float, float, float]],
    provenance: dict[str, object],
) -> BenchmarkDefinition:
    """Write a `clips` definition next to the files that are already under folder/videos, and
    return it.

    videos: (file, role, group, edit), a file being the path below videos/.
    labels: (file of the query, file of the other video, label).
    segments: the two files, begin and end in the query, begin and end in the other, in seconds.

    Raises:
        DataError: repeated files, and labels or segments of other files."""
    rows = [(f"{name}/{file}", f"videos/{file}", *rest) for file, *rest in videos]

    def with_ids(pairs: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [
            (f"{name}/{query}", f"{name}/{reference}", *rest) for query, reference, *rest in pairs
        ]

    tables = {
        "videos": pl.DataFrame(rows, schema=VIDEO_SCHEMA, orient="row"),
        "labels": pl.DataFrame(with_ids(labels), schema=LABEL_SCHEMA, orient="row"),
        "segments": pl.DataFrame(with_ids(segments), schema=SEGMENT_SCHEMA, orient="row"),
    }
    return write_definition(folder, kind=CLIPS, name=name, tables=tables, provenance=provenance)


def write_definition(
    folder: Path,
    *,
    kind: str,
    name: str,
    tables: Mapping[str, pl.DataFrame],
    provenance: dict[str, object],
) -> BenchmarkDefinition:
    """Check and write a definition, benchmark.json last, and return it.

    tables: videos and labels, and exclusions, events or segments where the kind has them."""
    definition = _definition(folder, kind, name, tables, provenance)
    folder.mkdir(parents=True, exist_ok=True)
    for table_name, table in tables.items():
        with write_atomic(folder / f"{table_name}.parquet") as part, part.open("wb") as stream:
            write_table(table.to_arrow(), stream)

    head = {"name": name, "kind": kind, "provenance": provenance, "format_version": FORMAT_VERSION}
    write_text(folder / "benchmark.json", json.dumps(head, indent=2, ensure_ascii=False) + "\n")
    return definition


def is_complete(folder: Path) -> bool:
    """Whether the benchmark exists. One with a damaged file counts as missing, with a warning."""
    if not (folder / "benchmark.json").is_file():
        return False
    try:
        load_definition(folder)
    except DataError as error:
        warnings.warn(f"{error}. It is rebuilt")
        return False

    return True


def load_definition(name_or_folder: str | Path) -> BenchmarkDefinition:
    """A benchmark by its name, or the one in a folder with a benchmark.json. Raises DataError if
    there is none, or it is damaged."""
    name = str(name_or_folder)
    folder = Path(name)
    if name in SHIPPED:
        folder = Path(__file__).parent / "data" / name
    if not (folder / "benchmark.json").is_file():
        raise DataError(
            f"benchmark {name!r}: no known name ({', '.join(SHIPPED)}) or folder with a "
            "benchmark.json"
        )

    head = read_json_as(folder / "benchmark.json", _Head, hint=HINT)
    has_files = head.kind == CLIPS
    columns = VIDEO_SCHEMA if has_files else dict.fromkeys(("video_id", "role"), pl.String)
    tables = {
        "videos": _read(folder, "videos", columns, may_lack=("group", "edit")),
        "labels": _read(folder, "labels", LABEL_SCHEMA),
    }
    if (folder / "exclusions.parquet").is_file():
        tables["exclusions"] = _read(folder, "exclusions", EXCLUSION_SCHEMA, may_lack=("query_id",))
    if (folder / "events.parquet").is_file():
        tables["events"] = _read(folder, "events", EVENT_SCHEMA)
    if has_files:
        tables["segments"] = _read(folder, "segments", SEGMENT_SCHEMA)
    return _definition(folder, head.kind, head.name or folder.name, tables, head.provenance)


def _definition(
    folder: Path,
    kind: str,
    name: str,
    tables: Mapping[str, pl.DataFrame],
    provenance: dict[str, object],
) -> BenchmarkDefinition:
    videos = tables["videos"]
    exclusions = tables.get("exclusions", pl.DataFrame(schema=EXCLUSION_SCHEMA))
    labels = frozenset(tables["labels"]["label"].unique())
    listed = frozenset(exclusions["exclusion"].unique())
    if kind == CLIPS:
        _require_files_of_clips(videos, folder=folder, name=name)
    _require_known_words(
        kind, roles=frozenset(videos["role"]), labels=labels, listed=listed, folder=folder
    )

    queries = videos.filter(pl.col("role").is_in(["query", "both"]))
    database = videos.filter(pl.col("role").is_in(["database", "both"]))
    return BenchmarkDefinition(
        name=name,
        queries=tuple(queries["video_id"]),
        database=tuple(database["video_id"]),
        labels=tables["labels"],
        exclusions=exclusions,
        segments=tables.get("segments"),
        tasks=measurable_tasks(kind, labels=labels, exclusions=listed),
        videos=videos if kind == CLIPS else None,
        folder=folder,
        events=dict(tables["events"].iter_rows()) if "events" in tables else {},
        provenance=provenance,
    )


def _require_files_of_clips(videos: pl.DataFrame, *, folder: Path, name: str) -> None:
    """Raises DataError unless the ids of a `clips` benchmark are its files below videos/."""
    inside = pl.col("path").str.strip_prefix("videos/")
    fits = (inside != pl.col("path")) & (pl.lit(f"{name}/") + inside == pl.col("video_id"))
    fits &= pl.col("role").is_in(["query", "database"])
    fits &= ~pl.col("path").str.split("/").list.contains("..")
    for row in videos.remove(fits).head(1).iter_rows(named=True):
        raise DataError(
            f"{folder / 'videos.parquet'}: id {row['video_id']!r}, path {row['path']!r} and role "
            f"{row['role']!r} do not agree; expected a path videos/X, the id {name}/X, where "
            f"{name} is the name in benchmark.json, and the role query or database"
        )


def _require_known_words(
    kind: str,
    *,
    roles: frozenset[str],
    labels: frozenset[str],
    listed: frozenset[str],
    folder: Path,
) -> None:
    """Raises DataError for roles and exclusions that no task knows, and for labels that differ from
    a relevant one only in upper and lower case. listed: the names of exclusions."""
    relevant = {label for task in TASKS[kind] for label in task.positives}
    names = {task.exclusion for task in TASKS[kind]} - {None}
    lowered = {label.lower() for label in relevant}
    misspelt = [label for label in labels - relevant if label.lower() in lowered]
    wrong = [f"role {role!r}" for role in roles - {"query", "database", "both"}]
    wrong += [f"exclusion {exclusion!r}" for exclusion in listed - names]
    wrong += [f"label {label!r}" for label in misspelt]
    if wrong:
        raise DataError(
            f"{folder}: {', '.join(sorted(wrong))[:200]}; expected roles query, database and both, "
            f"exclusions {sorted(filter(None, names))} and labels {sorted(relevant)}"
        )


def _read(
    folder: Path, name: str, schema: Mapping[str, type[pl.DataType]], may_lack: Sequence[str] = ()
) -> pl.DataFrame:
    """The columns of a table that this package wrote.

    may_lack: columns that may lack a value in some rows."""
    path = folder / f"{name}.parquet"
    try:
        table = read_frame(path).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
        table = table.select(*schema).match_to_schema(schema)
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        raise DamagedError(f"{path}: {error}; {HINT}") from error

    for column in schema:
        if column not in may_lack and table[column].null_count():
            raise DamagedError(f"{path}: its column {column} has rows without a value; {HINT}")

    return table
