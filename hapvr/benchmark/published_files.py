"""Benchmarks whose lists of videos do not ship, read from the files of their authors: VCDB (Jiang
et al., ECCV 2014) and SVD with its unlabelled videos (Jiang et al., ICCV 2019)."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mode

import polars as pl

from hapvr.benchmark.definition import LABEL_SCHEMA, BenchmarkDefinition, write_definition
from hapvr.benchmark.tasks import COPY, POSITIVE
from hapvr.errors import DamagedError, DataError
from hapvr.files import file_problem, read_bytes
from hapvr.tables import MAX_USER_BYTES

VCDB_CORE = 528
VCDB_DISTRACTORS = 100_000
SVD_UNLABELLED = 526_787
"""How many videos the data sets have by S2VS 4.1 and HAP-VR B.1."""
VCDB_SEGMENTS = 9_236
"""How many copied segments VCDB has by VVS."""
_HINT = "fetch the file of the data set again, whole"
_TIME = re.compile(r"\d{1,3}:\d{2}:\d{2}")


def import_vcdb(folder: Path, out: Path, *, distractors: Path | None = None) -> BenchmarkDefinition:
    """VCDB's core as queries and database; videos that share a copied segment are relevant to each
    other (S2VS 4.1). Writes a definition and returns it.

    folder: with annotation/*.txt, lines "video,video,start,end,start,end", and, if some core videos
    have no copy, core_dataset/ with the video files. distractors: a list of ids, one a line, or a
    folder of video files, which join the database. Ids are file names without their extension.
    Raises DataError for files that are missing, are cut off or hold something else, and for a
    distractor that is a core video."""
    segments = _vcdb_segments(folder)
    pairs = _pairs_of(segments)
    core = _stems(folder / "core_dataset") or sorted({video for pair in pairs for video in pair})
    if unknown := sorted({video for pair in pairs for video in pair} - set(core)):
        raise DataError(
            f"{folder / 'core_dataset'}: {len(unknown)} videos of the annotation are not there, "
            f"e.g. {unknown[0]!r}; add them, or remove the folder, so that the annotation names "
            "the core"
        )

    added = _distractors(distractors)
    _require_apart(added, core, place=distractors, what="core video")
    notes = [_count_note("core videos", len(core), VCDB_CORE)]
    if len(segments) < VCDB_SEGMENTS:
        notes.append(
            f"{len(segments):,} copied segments, the papers have {VCDB_SEGMENTS:,}: "
            "not their labels"
        )

    if distractors is not None:
        notes.append(_count_note("distractors", len(added), VCDB_DISTRACTORS))
    return _write(
        out,
        kind="vcdb",
        name="vcdb-distractors" if distractors is not None else "vcdb",
        queries=core,
        database=[*core, *added],
        labels=[(*pair, COPY) for pair in pairs],
        notes=notes,
    )


def import_svd(folder: Path, out: Path) -> BenchmarkDefinition:
    """SVD's test set with its unlabelled videos, which are negatives of every query (HAP-VR B.1).
    Writes a definition and returns it.

    folder: with test_groundtruth, lines "query candidate 0|1", and unlabeled-data-id, an id a line.
    Raises DataError for files that are missing, are cut off or hold something else, and for an
    unlabelled video that is a query."""
    truth = folder / "test_groundtruth"
    rows = _rows(truth, num_fields=3)
    for number, (_, _, label) in enumerate(rows, start=1):
        if label not in ("0", "1"):
            raise DataError(f"{truth}: line {number} has the label {label!r:.50}, expected 0 or 1")

    queries = list(dict.fromkeys(query for query, _, _ in rows))
    candidates = list(dict.fromkeys(candidate for _, candidate, _ in rows))
    place = folder / "unlabeled-data-id"
    unlabelled = _unique(_lines(place), place=place)
    _require_apart(unlabelled, queries, place=place, what="query")
    labelled = set(candidates)
    added = [video for video in unlabelled if video not in labelled]
    notes = [_count_note("unlabelled videos", len(unlabelled), SVD_UNLABELLED)]
    if len(added) < len(unlabelled):
        count = len(unlabelled) - len(added)
        notes.append(f"{count:,} of them are labelled, and count for their own query alone")

    return _write(
        out,
        kind="svd",
        name="svd-unlabelled",
        queries=queries,
        database=[*candidates, *added],
        labels=[
            (query, candidate, POSITIVE if label == "1" else "negative")
            for query, candidate, label in rows
        ],
        notes=notes,
    )


def _vcdb_segments(folder: Path) -> list[tuple[str, str]]:
    """The videos of each copied segment of the annotation."""
    files = sorted((folder / "annotation").glob("*.txt"))
    if not files:
        raise DataError(f"{folder / 'annotation'}: no files *.txt, expected one or more; {_HINT}")
    segments = []
    for file in files:
        for number, row in enumerate(_rows(file, num_fields=6, separator=","), start=1):
            if wrong := [text for text in row[2:] if not _TIME.fullmatch(text)]:
                raise DataError(
                    f"{file}: line {number} has the time {wrong[0]!r:.50}, expected H:MM:SS; "
                    f"{_HINT}"
                )

            segments.append((Path(row[0]).stem, Path(row[1]).stem))

    return segments


def _pairs_of(segments: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs of different videos that share a segment, in both directions, each once."""
    pairs: dict[tuple[str, str], None] = {}
    for first, second in segments:
        if first != second:
            pairs[first, second] = None
            pairs[second, first] = None

    return list(pairs)


def _distractors(place: Path | None) -> list[str]:
    if place is None:
        return []
    names = _stems(place) if place.is_dir() else [Path(line).stem for line in _lines(place)]
    if not names:
        raise DataError(f"{place}: no distractors in it; expected a list of ids, or video files")
    return _unique(names, place=place)


def _write(
    out: Path,
    *,
    kind: str,
    name: str,
    queries: Sequence[str],
    database: Sequence[str],
    labels: Sequence[tuple[str, str, str]],
    notes: Iterable[str],
) -> BenchmarkDefinition:
    known_queries = set(queries)
    known_database = set(database)
    videos = [(video, "both" if video in known_database else "query") for video in queries] + [
        (video, "database") for video in database if video not in known_queries
    ]
    tables = {
        "videos": pl.DataFrame(videos, schema=["video_id", "role"], orient="row"),
        "labels": pl.DataFrame(labels, schema=LABEL_SCHEMA, orient="row"),
    }
    provenance: dict[str, object] = {"note": "; ".join(filter(None, notes))}
    return write_definition(out, kind=kind, name=name, tables=tables, provenance=provenance)


def _count_note(what: str, found: int, published: int) -> str:
    """A note to print beside numbers if a list is not the paper's; "" if it is."""
    if found == published:
        return ""
    return f"{found:,} {what}, the papers have {published:,}: not their pool"


def _require_apart(
    listed: Sequence[str], taken: Sequence[str], *, place: Path | None, what: str
) -> None:
    shared = sorted(set(listed) & set(taken))
    if shared:
        raise DataError(
            f"{place}: {shared[0]!r} is also a {what} ({len(shared)} in all); no such video may be "
            "a negative, so remove them from the list"
        )


def _unique(names: Sequence[str], *, place: Path) -> list[str]:
    unique = list(dict.fromkeys(names))
    if len(unique) < len(names):
        raise DataError(
            f"{place}: {mode(names)!r} is repeated ({len(names) - len(unique)} in all); list each "
            "id once"
        )

    return unique


def _stems(folder: Path) -> list[str]:
    return sorted({path.stem for path in folder.rglob("*") if path.is_file()})


def _lines(path: Path) -> list[str]:
    """The stripped lines of a text file without empty ones; a byte order mark is no part of an
    id."""
    try:
        text = read_bytes(path, max_bytes=MAX_USER_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problem = file_problem(error)
        raise DamagedError(f"{path}: cannot be read as text ({problem}); {_HINT}") from error

    return [line.strip() for line in text.splitlines() if line.strip()]


def _rows(path: Path, *, num_fields: int, separator: str | None = None) -> list[list[str]]:
    """The fields of each line, which must number `num_fields`."""
    rows = [[field.strip() for field in line.split(separator)] for line in _lines(path)]
    for number, row in enumerate(rows, start=1):
        if len(row) != num_fields:
            raise DataError(
                f"{path}: line {number}, {' '.join(row)!r:.120}, has {len(row)} fields, expected "
                f"{num_fields}; {_HINT}"
            )

    if not rows:
        raise DataError(f"{path}: it is empty; {_HINT}")
    return rows
