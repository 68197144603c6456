"""Readers of benchmarks' files as their authors publish them.

FIVR (Kordopatis-Zilos et al., TMM 2019), EVVE (Revaud et al., CVPR 2013), SVD (Jiang et al., ICCV 2019), CC_WEB_VIDEO (Wu
et al., ACM MM 2007), and copies of parts: VCDB (Jiang et al., ECCV 2014), VCSL (He et al., CVPR 2022) and VSC2022 (Pizzi et
al., 2023). Each reader raises DataError, with the file and what was found, for files that are not there or hold something
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import polars as pl
from pydantic import BaseModel

from hapvr.benchmark.definition import (
    AMBIGUOUS,
    CLEANED,
    COPY,
    EASY,
    EXCLUSION_SCHEMA,
    LABEL_SCHEMA,
    NEGATIVE,
    POSITIVE,
    BenchmarkDefinition,
    tasks_of,
)
from hapvr.benchmark.segments import SEGMENT_SCHEMA
from hapvr.errors import DamagedError, DataError
from hapvr.files import read_json_as, require_regular
from hapvr.tables import TABLE_ERRORS, read_user_table

Value = TypeVar("Value")
Box = tuple[float, float, float, float]

HINT = "is this the folder of the data set?"
VSC_NAMES = {name: name.replace("reference", "ref").removesuffix("_s") for name in SEGMENT_SCHEMA}
"""Our columns -> VSC2022's."""


def read_fivr(folder: Path, *, name: str) -> BenchmarkDefinition:
    """annotation.json ({query: {label: [ids]}}) and, for "fivr-200k", youtube_ids.txt (an id per line), for "fivr-5k",
    fivr_5k.json ({"queries", "database"}); easy_duplicates.txt (an id per line) adds the hard versions."""
    annotation = read_json(folder / "annotation.json", dict[str, dict[str, list[str]]])
    if name == "fivr-5k":
        subset = read_json(folder / "fivr_5k.json", _Subset)
        queries, database = subset.queries, subset.database
    else:
        queries, database = sorted(annotation), read_lines(folder / "youtube_ids.txt")
    kept, easy_file = set(database), folder / "easy_duplicates.txt"
    rows = [
        (query, reference, label)
        for query in queries
        for label, references in annotation.get(query, {}).items()
        for reference in references
        if reference in kept
    ]
    easy = [(EASY, None, video) for video in read_lines(easy_file) if video in kept] if easy_file.is_file() else []
    return _definition(name, "fivr", queries, database, rows, easy)


class _Subset(BaseModel):
    queries: list[str]
    database: list[str]


class _Event(BaseModel):
    queries: list[str]
    positives: list[str]
    nulls: list[str]


class _Events(BaseModel):
    database: list[str]
    events: dict[str, _Event]


def read_evve(folder: Path, *, name: str) -> BenchmarkDefinition:
    """annots/<event>.dat (lines "id 1|0|-1 query|database", as published) or else evve.json.

    A video labelled 0 is ambiguous: it leaves the rankings of its event.
    """
    files = sorted((folder / "annots").glob("*.dat"))
    if files:
        database, events = [], []
        for file in files:
            rows = read_rows(file, columns=3, values=("1", "0", "-1"), at=1)
            stored = [(video, label) for video, label, split in rows if split != "query"]
            database += [video for video, _ in stored]
            queries = [video for video, _, split in rows if split == "query"]
            positives, nulls = ([video for video, label in stored if label == wanted] for wanted in "10")
            events.append(_Event(queries=queries, positives=positives, nulls=nulls))
    else:
        content = read_json(folder / "evve.json", _Events)
        database, events = content.database, list(content.events.values())
    pairs = [(event, query) for event in events for query in event.queries]
    labels = [(query, video, POSITIVE) for event, query in pairs for video in event.positives]
    ambiguous = [(AMBIGUOUS, query, video) for event, query in pairs for video in event.nulls]
    return _definition(name, "evve", [query for _, query in pairs], dict.fromkeys(database), labels, ambiguous)


def read_svd(folder: Path, *, name: str) -> BenchmarkDefinition:
    """test_groundtruth (lines "query candidate 0|1") and, if there, unlabeled-data-id (an id per line).

    Without the second file it is the labelled part only, on which published numbers cannot be reproduced.
    """
    rows = read_rows(folder / "test_groundtruth", columns=3, values=("1", "0"), at=2)
    labels = [(query, candidate, POSITIVE if label == "1" else NEGATIVE) for query, candidate, label in rows]
    file = folder / "unlabeled-data-id"
    unlabelled = read_lines(file) if file.is_file() else []
    candidates = dict.fromkeys(candidate for _, candidate, _ in labels)
    database = [*candidates, *(video for video in unlabelled if video not in candidates)]
    return _definition(name, "svd", dict.fromkeys(query for query, _, _ in labels), database, labels)


class _Sets(BaseModel):
    index: dict[str, int]
    queries: list[str]
    ground_truth: list[dict[int, str]]
    excluded: list[list[int]]


def read_cc_web_video(folder: Path, *, name: str) -> BenchmarkDefinition:
    """Video_List.txt, Seed.txt and GT/GT_<set>.rst as published, or else cc_web_video.json.

    Ids are "<set>/<file name without extension>". Labelled numbers without a file are kept as "unnamed/<number>", so
    that they cost recall. The JSON file adds the cleaned annotation ("excluded"), without which the two cleaned
    numbers are left out.
    """
    excluded: list[list[int]] = []
    if (folder / "Video_List.txt").is_file():
        video_list, seed_list = folder / "Video_List.txt", folder / "Seed.txt"
        listed = read_rows(video_list, columns=4, separator="\t")
        names = {_number(number, video_list): f"{own}/{Path(file).stem}" for number, own, _, file in listed}
        seeds = {own: _number(number, seed_list) for own, number in read_rows(seed_list, columns=2)}
        queries = [names.get(number, f"unnamed/{number}") for number in seeds.values()]
        truths = []
        for path in (folder / "GT" / f"GT_{own}.rst" for own in seeds):
            # -1 marks videos that no longer existed when the labels were made
            labelled = [(number, label) for number, label in read_rows(path, columns=2) if label != "-1"]
            truths.append({_number(number, path): label for number, label in labelled})
    else:
        content = read_json(folder / "cc_web_video.json", _Sets)
        names = {number: video for video, number in content.index.items()}
        queries, truths, excluded = content.queries, content.ground_truth, content.excluded
    rows = [
        (query, names.get(number, f"unnamed/{number}"), label)
        for query, truth in zip(queries, truths, strict=True)
        for number, label in truth.items()
    ]
    hidden = [
        (CLEANED, query, names[number])
        for query, numbers in zip(queries, excluded, strict=False)
        for number in numbers
        if number in names
    ]
    database = dict.fromkeys([*names.values(), *(reference for _, reference, _ in rows)])
    return _definition(name, "cc_web_video", queries, database, rows, hidden)


def _number(text: str, path: Path) -> int:
    if not text.isdigit():
        raise DataError(f"{path}: {text!r:.50} is not a video number")
    return int(text)


def read_vcdb(folder: Path, *, name: str) -> BenchmarkDefinition:
    """annotation/<event>.txt (lines "video,video,start,end,start,end", as published).

    The core videos are the files under core_dataset/ if that folder exists, else all videos that the annotation names.
    For "vcdb-distractors" the database also holds the lines of distractors.txt or the files under
    background_dataset/. Ids are file names without their extension.
    """
    rows = [row for file in annotation_files(folder) for row in read_rows(file, columns=6, separator=",")]
    named = [(Path(first).stem, Path(second).stem) for first, second, *_ in rows]
    pairs = dict.fromkeys(pair for a, b in named if a != b for pair in ((a, b), (b, a)))
    core = _stems(folder / "core_dataset") or sorted({video for pair in named for video in pair})
    distractors: list[str] = []
    if name == "vcdb-distractors":
        listed = folder / "distractors.txt"
        distractors = read_lines(listed) if listed.is_file() else _stems(folder / "background_dataset")
        if not distractors:
            raise DataError(
                f"{folder}: neither distractors.txt nor files under background_dataset; without distractors use 'vcdb'"
            )
    known = set(core)
    database = [*core, *(video for video in distractors if video not in known)]
    return _definition(name, "vcdb", core, database, [(*pair, COPY) for pair in pairs])


def annotation_files(folder: Path) -> list[Path]:
    """VCDB's files of annotation/, one per event. Raises DataError if there are none."""
    return _files(folder / "annotation", "*.txt")


def _stems(folder: Path) -> list[str]:
    return sorted({path.stem for path in folder.rglob("*") if path.is_file()})


def read_vcsl(folder: Path, *, name: str) -> BenchmarkDefinition:
    """label_file*.json: "query-reference" -> a list of [query begin, reference begin, query end, reference end].

    With a pair_file*.csv (columns query_id, reference_id), such as that of the test split, only its pairs count, and a pair
    without labels is one without copies. A part without length in one of both videos is left out, as it adds nothing to
    any measure.
    """
    path = _files(folder, "label_file*.json", most=1)[0]
    boxes = {_pair(key, path): found for key, found in read_json(path, dict[str, list[Box]]).items()}
    pairs: Iterable[tuple[str, ...]] = boxes
    if any(folder.glob("pair_file*.csv")):
        table = _read_csv(
            _files(folder, "pair_file*.csv", most=1)[0], {"query_id": pl.String, "reference_id": pl.String}
        )
        pairs = dict.fromkeys(table.iter_rows())
    rows = [
        (*pair, query_start, query_end, start, end)
        for pair in pairs
        for query_start, start, query_end, end in boxes.get((pair[0], pair[1]), [])
        if query_start != query_end and start != end
    ]
    segments = pl.DataFrame(rows, schema=SEGMENT_SCHEMA, orient="row")
    return _with_segments(name, [query for query, _ in pairs], [reference for _, reference in pairs], segments)


def _pair(key: str, path: Path) -> tuple[str, str]:
    """The two ids of a key. They may have dashes, as UUIDs do, but as many each."""
    parts = key.split("-")
    half = len(parts) // 2
    if len(parts) % 2 or not all(parts):
        raise DataError(f"{path}: {key!r:.100} is not a pair of ids; wanted query-reference")
    return "-".join(parts[:half]), "-".join(parts[half:])


def read_vsc2022(folder: Path, *, name: str) -> BenchmarkDefinition:
    """*ground_truth*.csv: query_id, ref_id and the begin and end in both, in seconds, a row per copied part.

    Queries and references are the `video_id`s of *query_metadata.csv and *reference_metadata.csv, or without these files
    the videos that the ground truth names.
    """
    truth = _read_csv(
        _files(folder, "*ground_truth*.csv", most=1)[0], {VSC_NAMES[ours]: SEGMENT_SCHEMA[ours] for ours in VSC_NAMES}
    )
    segments = truth.rename({theirs: ours for ours, theirs in VSC_NAMES.items()})

    def listed(role: str) -> pl.Series:
        pattern = f"*{role}_metadata.csv"
        if any(folder.glob(pattern)):
            return _read_csv(_files(folder, pattern, most=1)[0], {"video_id": pl.String})["video_id"]
        return segments[f"{role}_id"]

    return _with_segments(name, listed("query"), listed("reference"), segments)


def _with_segments(
    name: str, queries: Iterable[str], references: Iterable[str], segments: pl.DataFrame
) -> BenchmarkDefinition:
    pairs = segments.select("query_id", "reference_id").unique(maintain_order=True).iter_rows()
    labels = [(*pair, COPY) for pair in pairs]
    return _definition(name, name, dict.fromkeys(queries), dict.fromkeys(references), labels, segments=segments)


def _definition(
    name: str,
    kind: str,
    queries: Iterable[str],
    database: Iterable[str],
    labels: Sequence[tuple[str, ...]],
    exclusions: Sequence[tuple[str | None, ...]] = (),
    segments: pl.DataFrame | None = None,
) -> BenchmarkDefinition:
    """labels, exclusions: rows of LABEL_SCHEMA and EXCLUSION_SCHEMA."""
    return BenchmarkDefinition(
        name=name,
        kind=kind,
        queries=tuple(queries),
        database=tuple(database),
        labels=pl.DataFrame(labels, schema=LABEL_SCHEMA, orient="row"),
        exclusions=pl.DataFrame(exclusions, schema=EXCLUSION_SCHEMA, orient="row"),
        segments=segments,
        tasks=tasks_of(kind, {row[2] for row in labels}, {str(row[0]) for row in exclusions}),
    )


def read_json(path: Path, kind: type[Value]) -> Value:
    """The value in a JSON file. kind: its type, as pydantic knows it."""
    return read_json_as(path, kind, hint=HINT)


def read_lines(path: Path) -> list[str]:
    """The stripped lines of a text file without empty ones."""
    try:
        require_regular(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path}: cannot be read as text ({error}); {HINT}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def split_line(line: str, *, path: Path, columns: int, separator: str | None = None) -> list[str]:
    """The fields of a line of a file, which must be `columns` or more."""
    fields = [field.strip() for field in line.split(separator)]
    if len(fields) < columns:
        raise DataError(f"{path}: line {line!r:.200} has {len(fields)} fields, wanted {columns} or more")
    return fields


def read_rows(
    path: Path, *, columns: int, separator: str | None = None, values: Sequence[str] = (), at: int = 0
) -> list[list[str]]:
    """The first `columns` fields of each line. values: those that the field `at` may have; none for any."""
    rows = [split_line(line, path=path, columns=columns, separator=separator)[:columns] for line in read_lines(path)]
    for row in rows:
        if values and row[at] not in values:
            raise DataError(f"{path}: line {' '.join(row)!r:.200} has {row[at]!r:.50}, wanted {', '.join(values)}")
    return rows


def _read_csv(path: Path, schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """These columns of a CSV file."""
    try:
        return read_user_table(path).select(pl.col(name).cast(kind) for name, kind in schema.items())
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        raise DamagedError(
            f"{path}: cannot be read as CSV with columns {', '.join(schema)} ({error}); {HINT}"
        ) from error


def _files(folder: Path, pattern: str, *, most: int = 1 << 20) -> list[Path]:
    """The files of a folder whose name has this pattern, one to `most`."""
    found = sorted(folder.glob(pattern))
    if not 1 <= len(found) <= most:
        raise DataError(f"{folder}: {len(found)} files {pattern}, wanted one{' or more' if most > 1 else ''}; {HINT}")
    return found
