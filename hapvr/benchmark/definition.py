"""What a benchmark is: queries, a database, labelled pairs, and the tasks that are measured on
them; and its folder.

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
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import mode
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import BaseModel, Field

from hapvr.errors import DamagedError, DataError
from hapvr.files import read_json_as, write_atomic, write_text
from hapvr.tables import TABLE_ERRORS, read_frame, write_table

Metric = Literal["mAP", "micro-AP"]
ApKind = Literal["step", "trapezoid", "tie_grouped"]
Pool = Literal["database", "labelled", "labelled_and_unlabelled"]

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


@dataclass(frozen=True, kw_only=True)
class Task:
    """One number of a benchmark: which labels are relevant, in which pool, by which average
    precision.

    pool: "database" ranks every database video; "labelled" only the videos that carry a label of
    this query;
      "labelled_and_unlabelled" those and the videos that carry no label of any query (SVD).
    exclusion: name of the exclusion list whose videos leave ranking and ground truth; None for
    none. ignored: labels of true matches that the task does not ask for; pairs that carry one leave
    the ranking. query_stays: a query found in its own ranking stays there and may count as a hit
    (CC_WEB_VIDEO). official_missing_positive: "leaves" the ground truth or "misses" (costs recall)
    under the official policy. official_empty_query: a query left without positives is "skipped" or
    scores "zero" under the official policy.
      A query without any score is skipped there.
    """

    name: str
    metric: Metric
    positives: frozenset[str]
    average_precision: ApKind = "step"
    pool: Pool = "database"
    exclusion: str | None = None
    ignored: frozenset[str] = frozenset()
    query_stays: bool = False
    official_missing_positive: Literal["leaves", "misses"] = "leaves"
    official_empty_query: Literal["skipped", "zero"] = "skipped"


CLIPS, PARTS_TASK = "clips", "parts"
POSITIVE, PART, COPY = "positive", "part", "copy"
_FIVR_LABELS = {"DSV": ("ND", "DS"), "CSV": ("ND", "DS", "CS"), "ISV": ("ND", "DS", "CS", "IS")}
_FIVR_METRICS: tuple[tuple[str, Metric], ...] = (("R", "mAP"), ("D", "micro-AP"))
_evve = partial(
    Task, positives=frozenset({POSITIVE}), exclusion="ambiguous", official_empty_query="zero"
)
_svd = partial(
    Task,
    positives=frozenset({POSITIVE}),
    pool="labelled_and_unlabelled",
    official_empty_query="zero",
)
_cc = partial(
    Task,
    metric="mAP",
    positives=frozenset("ESLMV"),
    query_stays=True,
    official_missing_positive="misses",
)

TASKS: dict[str, tuple[Task, ...]] = {
    "fivr": tuple(
        Task(
            name=f"{stem}{letter}{suffix}",
            metric=metric,
            positives=frozenset(positives),
            exclusion=exclusion,
        )
        for suffix, exclusion in (("", None), ("_h", "easy_duplicates"))
        for letter, metric in _FIVR_METRICS
        for stem, positives in _FIVR_LABELS.items()
    ),
    "evve": (
        _evve(name="EVVE_mAP", metric="mAP", average_precision="trapezoid"),
        _evve(name="EVVE_uAP", metric="micro-AP"),
    ),
    "svd": (
        _svd(name="mAP", metric="mAP", average_precision="tie_grouped"),
        _svd(name="uAP", metric="micro-AP"),
    ),
    "vcdb": (
        Task(name="VCDB_mAP", metric="mAP", positives=frozenset({COPY})),
        Task(name="VCDB_uAP", metric="micro-AP", positives=frozenset({COPY})),
    ),
    "cc_web_video": (
        _cc(name="mAP", pool="labelled"),
        _cc(name="mAP_star"),
        _cc(name="mAP_c", pool="labelled", exclusion="cleaned"),
        _cc(name="mAP_c_star", exclusion="cleaned"),
    ),
}
TASKS[CLIPS] = (
    *(replace(task, ignored=frozenset({PART})) for task in TASKS["fivr"]),
    Task(
        name=PARTS_TASK,
        metric="micro-AP",
        positives=frozenset({PART}),
        ignored=frozenset(_FIVR_LABELS["ISV"]),
    ),
)
"""All tasks of each kind of benchmark."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BenchmarkDefinition:
    """Queries, database and labelled pairs of one benchmark. The constructor checks them. labels:
    columns query_id, reference_id, label; a pair may carry several labels, a pair without one is a
    negative. exclusions: columns exclusion (name of the list), query_id (null: for every query),
    reference_id. videos: for a benchmark with files, columns video_id, path (relative to `folder`),
    role, group, edit; else None. segments: SEGMENT_SCHEMA, every stretch of a query that a database
    video shows, and when it does; None: not known. events: of queries, whose mAP is also reported
    event by event (EVVE). Raises DataError where ids repeat, a label or
    segment names an unknown video, or a segment does not end after it begins."""

    name: str
    queries: tuple[str, ...]
    database: tuple[str, ...]
    labels: pl.DataFrame
    tasks: tuple[Task, ...]
    exclusions: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=EXCLUSION_SCHEMA))
    segments: pl.DataFrame | None = None
    videos: pl.DataFrame | None = None
    folder: Path | None = None
    events: dict[str, str] = field(default_factory=dict)
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
        for role, column, ids in (
            ("queries", "query_id", self.queries),
            ("database", "reference_id", self.database),
        ):
            known = set(ids)
            if len(known) < len(ids):
                yield (
                    f"some ids of its {role} are repeated, e.g. {mode(ids)!r}; list every "
                    "video once"
                )
            for what, table in (("labels", self.labels), ("segments", self.segments)):
                if unknown := set() if table is None else set(table[column].unique()) - known:
                    yield (
                        f"{len(unknown)} ids in {what}.{column} are not in its {role}, e.g. "
                        f"{min(unknown)!r}; add the "
                        f"videos or drop their {what}"
                    )
        if self.labels.is_duplicated().any():
            yield "some labels are given twice; keep each (pair, label) once"
        if self.segments is not None:
            possible = [pl.col(name).is_finite() & (pl.col(name) >= 0) for name in TIME_COLUMNS]
            ordered = [
                pl.col(end) > pl.col(start) for start, end in (TIME_COLUMNS[:2], TIME_COLUMNS[2:])
            ]
            wrong = self.segments.filter(~pl.all_horizontal(*possible, *ordered))
            if len(wrong):
                yield (
                    f"{len(wrong)} segments are no stretch of time, e.g. {wrong.row(0)}; "
                    "give begins before ends, in seconds"
                )
        if not self.tasks:
            yield "no label gives any task a positive pair; check the labels"

    @cached_property
    def video_ids(self) -> tuple[str, ...]:
        """Queries, then the database videos that are not queries."""
        return tuple(dict.fromkeys(self.queries + self.database))


SHIPPED = {
    "fivr-5k": "FIVR-5K: 50 queries, 5,000 videos; DSVR, CSVR, ISVR, DSVD, CSVD, ISVD, "
    "normal and hard",
    "fivr-200k": "FIVR-200K: 100 queries, 225,960 videos; the same tasks",
    "evve": "EVVE: 620 queries, 2,373 videos of 13 events",
    "svd": "SVD: 206 queries, 6,355 labelled pairs; `hapvr benchmarks import svd` adds the "
    "unlabelled videos, on which the papers report",
    "cc_web_video": "CC_WEB_VIDEO: 24 query sets, 13,125 videos (papers: 13,129); four variants of "
    "mAP",
}

FORMAT_VERSION = 1
HINT = "write the benchmark again, or install the package again"


class _Head(BaseModel):
    """benchmark.json. name: also of folders, so it leads nowhere else; that of the folder where it
    is absent."""

    kind: Annotated[str, Field(pattern=f"^({'|'.join(TASKS)})$")]
    format_version: Annotated[int, Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)]
    name: Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]{0,199}$")] = ""
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
    """Writes a `clips` definition next to the files that are already under folder/videos, and
    returns it. videos: (file, role, group, edit), a file being the path below videos/. labels:
    (file of the query, file of the other video, label). segments: the two files, begin and end in
    the query, begin and end in the other, in seconds. Raises DataError for repeated files, and
    labels or segments of other files."""
    rows = [(f"{name}/{file}", f"videos/{file}", *rest) for file, *rest in videos]

    def with_ids(table: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [(f"{name}/{query}", f"{name}/{other}", *rest) for query, other, *rest in table]

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
    """Checks and writes a definition, benchmark.json last, and returns it. tables: videos and
    labels, and exclusions, events or segments where the kind has them."""
    definition = _definition(folder, kind, name, tables, provenance)
    folder.mkdir(parents=True, exist_ok=True)
    for table_name, table in tables.items():
        with write_atomic(folder / f"{table_name}.parquet") as part, part.open("wb") as stream:
            write_table(table.to_arrow(), stream)
    head = {"name": name, "kind": kind, "provenance": provenance, "format_version": FORMAT_VERSION}
    write_text(folder / "benchmark.json", json.dumps(head, indent=2, ensure_ascii=False) + "\n")
    return definition


def is_complete(folder: Path) -> bool:
    """Whether the benchmark is there. One with a damaged file counts as missing, with a warning."""
    if not (folder / "benchmark.json").is_file():
        return False
    try:
        load_definition(folder)
    except DataError as error:
        warnings.warn(f"{error}. It is made again")
        return False
    return True


def load_definition(name_or_folder: str | Path) -> BenchmarkDefinition:
    """A benchmark by its name, or the one in a folder with a benchmark.json. Raises DataError where
    there is none, or damage."""
    name = str(name_or_folder)
    folder = Path(__file__).parent / "data" / name if name in SHIPPED else Path(name)
    if not (folder / "benchmark.json").is_file():
        raise DataError(
            f"benchmark {name!r}: no known name ({', '.join(SHIPPED)}) or folder with a "
            "benchmark.json"
        )
    head = read_json_as(folder / "benchmark.json", _Head, hint=HINT)
    clips = head.kind == CLIPS
    columns = VIDEO_SCHEMA if clips else dict.fromkeys(("video_id", "role"), pl.String)
    tables = {
        "videos": _read(folder, "videos", columns, may_lack=("group", "edit")),
        "labels": _read(folder, "labels", LABEL_SCHEMA),
    }
    if (folder / "exclusions.parquet").is_file():
        tables["exclusions"] = _read(folder, "exclusions", EXCLUSION_SCHEMA, may_lack=("query_id",))
    if (folder / "events.parquet").is_file():
        tables["events"] = _read(folder, "events", EVENT_SCHEMA)
    if clips:
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
    return BenchmarkDefinition(
        name=name,
        queries=tuple(videos.filter(pl.col("role").is_in(["query", "both"]))["video_id"]),
        database=tuple(videos.filter(pl.col("role").is_in(["database", "both"]))["video_id"]),
        labels=tables["labels"],
        exclusions=exclusions,
        segments=tables.get("segments"),
        tasks=_tasks_of(kind, labels=labels, listed=listed),
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
            f"{row['role']!r} do not agree; wanted a path videos/X, the id {name}/X, where {name} "
            "is the name in benchmark.json, and the role query or database"
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
    a relevant one in upper and lower case alone. listed: the names of exclusions."""
    relevant = frozenset[str]().union(*(task.positives for task in TASKS[kind]))
    names = {task.exclusion for task in TASKS[kind]} - {None}
    lowered = {label.lower() for label in relevant}
    misspelt = [label for label in labels - relevant if label.lower() in lowered]
    wrong = [f"role {role!r}" for role in roles - {"query", "database", "both"}]
    wrong += [f"exclusion {exclusion!r}" for exclusion in listed - names]
    wrong += [f"label {label!r}" for label in misspelt]
    if wrong:
        raise DataError(
            f"{folder}: {', '.join(sorted(wrong))[:200]}; wanted roles query, database and both, "
            f"exclusions {sorted(filter(None, names))} and labels {sorted(relevant)}"
        )


def _tasks_of(kind: str, *, labels: frozenset[str], listed: frozenset[str]) -> tuple[Task, ...]:
    """The tasks of a kind that these labels and lists of exclusions can measure, each measure
    once."""
    tasks: list[Task] = []
    seen: set[Task] = set()
    for task in TASKS[kind]:
        # Without a list of its exclusion a task ranks everything.
        exclusion = task.exclusion if task.exclusion in listed else None
        measured = replace(task, name="", exclusion=exclusion, positives=task.positives & labels)
        if measured.positives and measured not in seen:
            tasks.append(replace(task, exclusion=exclusion))
        seen.add(measured)
    return tuple(tasks)


def _read(
    folder: Path, name: str, schema: Mapping[str, type[pl.DataType]], may_lack: Sequence[str] = ()
) -> pl.DataFrame:
    """The columns of a table that this package wrote. may_lack: columns that have no value in some
    rows."""
    path = folder / f"{name}.parquet"
    try:
        table = read_frame(path).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
        table = table.select(*schema).match_to_schema(schema)
        lacking = [
            column for column in schema if table[column].null_count() and column not in may_lack
        ]
        problem = f"its column {lacking[0]} has rows without a value" if lacking else ""
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        problem = str(error)
    if problem:
        raise DamagedError(f"{path}: {problem}; {HINT}")
    return table
