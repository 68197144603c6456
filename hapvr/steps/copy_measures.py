"""Measurements of the pictures and files of copies, one per content.

duplicate_groups/pictures.parquet        a row per content
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.stamped import read_rows, stamp, write_rows
from hapvr.files import file_sha256
from hapvr.progress import Progress, shows_work
from hapvr.search.collection import VideoMetadata
from hapvr.search.duplicates import DuplicatePair
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.video.content import film_area
from hapvr.video.facts import MEASURE_VERSION, FileFacts
from hapvr.video.frames import mean_picture, noise_level
from hapvr.video.looks import film_pictures, mean_colours, moments, still_s
from hapvr.video.measure import measure_files
from hapvr.video.pool import RETRYABLE

PICTURES_PLACE = "duplicate_groups/pictures.parquet"
PICTURES_SCHEMA = pa.schema(
    [
        ("sha256", pa.string()),
        ("width_share", pa.float64()),
        ("height_share", pa.float64()),
        ("noise", pa.float64()),
        ("mean_picture", pa.binary()),
        ("mean_colours", pa.binary()),
        ("moments", pa.binary()),
        ("still_s", pa.float64()),
        ("video_bytes", pa.int64()),
        ("length_s", pa.float64()),
        ("declared_s", pa.float64()),
        ("fps", pa.float64()),
        ("sound", pa.bool_()),
        ("damage", pa.string()),
        ("pause_s", pa.float64()),
        ("detail", pa.list_(pa.field("element", pa.float64()))),  # as Parquet calls it
        ("new_share", pa.float64()),
        ("woven", pa.bool_()),
        ("fineness", pa.float64()),
        ("blockiness", pa.float64()),
        ("num_pictures", pa.int64()),
    ]
)
"""A row per content. What is of the file is null where the file could not be measured."""

PASSING = RETRYABLE | {"missing_file"}
"""Reasons that are not of a file's content."""

Measures = dict[str, dict[str, Any]]
"""SHA-256 of a content -> its row of PICTURES_SCHEMA."""
FACTS = tuple(field.name for field in fields(FileFacts))


def read_measures(root: DataRoot) -> Measures:
    """All that was measured, and by this version."""
    table = read_rows(root, PICTURES_PLACE, PICTURES_SCHEMA, damaged=True)
    if stamp(table, "measured") != str(MEASURE_VERSION):
        return {}
    return {row["sha256"]: row for row in table.to_pylist()}


def facts_by_content(measures: Measures) -> dict[str, FileFacts]:
    """SHA-256 -> what the file holds, of the files that could be measured."""
    return {sha256: _facts_of(row) for sha256, row in measures.items() if _has_facts(row)}


def with_pictures(file: VideoMetadata, row: Mapping[str, Any] | None) -> VideoMetadata:
    """The metadata of a video with what was measured of its frames.

    row: of PICTURES_SCHEMA; None: nothing was measured
    """
    if row is None or row["width_share"] is None:
        return file
    content = (row["width_share"], row["height_share"])
    return replace(
        file,
        content=content,
        noise=row["noise"],
        mean_picture=row["mean_picture"],
        mean_colours=row["mean_colours"],
        moments=row["moments"],
        still_s=row["still_s"],
    )


def has_unmeasured_copies(searcher: Searcher, pairs: Iterable[DuplicatePair]) -> bool:
    """Whether a copy's file was offline when its group was made, and is available now."""
    measures = read_measures(searcher.project.root)
    for video_id in _contents_of_copies(pairs):
        file = searcher.collection.metadata.of(video_id)
        if file.path is None or not _needs_facts(measures.get(file.sha256)):
            continue
        if os.path.exists(file.path):
            return True

    return False


def measure_copies(
    project: Project, searcher: Searcher, pairs: Iterable[DuplicatePair], progress: Progress
) -> None:
    """Measure the pictures and files of all copies that were not measured yet. A file that is
    offline, or for which there was no time, is measured at the next call."""
    before = read_measures(project.root)
    measures = dict(before)
    contents = _contents_of_copies(pairs)
    unseen = {name: sha256 for name, sha256 in contents.items() if sha256 not in measures}
    for number, row in enumerate(_picture_rows(project, searcher, unseen)):
        progress(number, len(unseen))
        measures[row["sha256"]] = row

    values_of_files = _file_values(
        project, searcher, contents, measures, doing=shows_work(progress)
    )
    for number, (sha256, values) in enumerate(values_of_files):
        progress(number, len(contents))
        row = measures.get(sha256) or _empty_row(sha256)
        measures[sha256] = row | values

    if measures != before:
        rows = [measures[sha256] for sha256 in sorted(measures)]
        table = pa.Table.from_pylist(rows, schema=PICTURES_SCHEMA)
        write_rows(project.root, PICTURES_PLACE, table, measured=str(MEASURE_VERSION))


def _contents_of_copies(pairs: Iterable[DuplicatePair]) -> dict[str, str]:
    """Video id -> SHA-256 of all videos that have a copy."""
    copies = [pair for pair in pairs if pair.kind == "copy"]
    contents = {pair.first: pair.first_sha256 for pair in copies}
    contents |= {pair.second: pair.second_sha256 for pair in copies}
    return contents


def _picture_rows(
    project: Project, searcher: Searcher, contents: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Bars, noise and the mean picture of videos whose frames are stored, as rows without facts.

    contents: id -> SHA-256
    """
    shard_of = searcher.collection.shard_of
    in_order = sorted(contents, key=lambda video_id: (shard_of[video_id], video_id))
    for key, video_ids in groupby(in_order, key=lambda video_id: shard_of[video_id]):
        if not project.root.exists(project.shard(FRAMES_STAGE, key).index_name):
            continue  # imported features have no frames
        frames = open_frames(project, key)
        for video_id in video_ids:
            sampled = frames.read(video_id)
            jpegs = sampled.jpegs
            width_share, height_share = film_area(jpegs)
            pictures = film_pictures(jpegs)
            yield _empty_row(contents[video_id]) | {
                "width_share": width_share,
                "height_share": height_share,
                "noise": noise_level(jpegs),
                "mean_picture": mean_picture(jpegs),
                "mean_colours": mean_colours(pictures),
                "moments": moments(pictures),
                "still_s": still_s(jpegs, sampled.timestamps_s),
            }


def _file_values(
    project: Project,
    searcher: Searcher,
    contents: Mapping[str, str],
    measures: Measures,
    *,
    doing: Callable[[str], None] | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """SHA-256 of each content whose file is available and was not measured, and what the file
    holds, or why it cannot be measured. What is wrong with a file is its own only if it has the
    recorded bytes, and a second try finds it again: a drive or network may fail for a moment.

    contents: id -> SHA-256
    doing: is told which file is measured, and how far it is
    """
    sampling = project.config.sampling
    content_of = _unmeasured_files(searcher, contents, measures)
    suspects: list[Path] = []
    for path, facts in measure_files(content_of, config=sampling, doing=doing):
        if isinstance(facts, FileFacts) and not facts.damage:
            yield content_of[path], asdict(facts)
        elif isinstance(facts, FileFacts) or facts.reason not in PASSING:
            suspects.append(path)

    unchanged = [path for path in suspects if _sha256(path) == content_of[path]]
    for path, facts in measure_files(unchanged, config=sampling, doing=doing):
        if isinstance(facts, FileFacts):
            yield content_of[path], asdict(facts)
        elif facts.reason not in PASSING:
            yield content_of[path], {"damage": str(facts)}


def _unmeasured_files(
    searcher: Searcher, contents: Mapping[str, str], measures: Measures
) -> dict[Path, str]:
    """A file of each content that was not measured, with the SHA-256 of the content, where the
    file is there and has the recorded number of bytes.

    contents: id -> SHA-256
    """
    file_of: dict[str, Path] = {}
    for video_id, sha256 in contents.items():
        file = searcher.collection.metadata.of(video_id)
        if file.path is None or sha256 in file_of:
            continue
        if not _needs_facts(measures.get(sha256)):
            continue
        if _num_bytes(file.path) == file.num_bytes:
            file_of[sha256] = file.path

    return {path: sha256 for sha256, path in file_of.items()}


def _empty_row(sha256: str) -> dict[str, Any]:
    """A row of PICTURES_SCHEMA of a content of which nothing was measured."""
    return dict.fromkeys(PICTURES_SCHEMA.names) | {"sha256": sha256}


def _has_facts(row: Mapping[str, Any]) -> bool:
    return row["video_bytes"] is not None


def _needs_facts(row: Mapping[str, Any] | None) -> bool:
    """Whether a file was not measured, nor found to be damaged.

    row: of its content, if it has one
    """
    if row is None:
        return True
    return not _has_facts(row) and row["damage"] is None


def _facts_of(row: Mapping[str, Any]) -> FileFacts:
    values = {name: row[name] for name in FACTS}
    return FileFacts(**values | {"detail": tuple(row["detail"])})


def _sha256(path: Path) -> str:
    """Of the file; "" where it cannot be read."""
    with suppress(OSError, ValueError):
        return file_sha256(path)
    return ""


def _num_bytes(path: Path) -> int:
    """Of the file; -1 where it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
