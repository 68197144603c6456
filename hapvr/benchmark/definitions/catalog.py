"""Finding a benchmark by name or folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.cc_web_video import cc_web_video_tasks, read_cc_web_video
from hapvr.benchmark.definitions.clips import FORMATS as CLIPS_FORMATS
from hapvr.benchmark.definitions.clips import read_clips
from hapvr.benchmark.definitions.evve import evve_tasks, read_evve
from hapvr.benchmark.definitions.files import read_head
from hapvr.benchmark.definitions.fivr import fivr_tasks, read_fivr
from hapvr.benchmark.definitions.marks import MARKS, marks_tasks
from hapvr.benchmark.definitions.segment_sets import read_vcsl, read_vsc2022
from hapvr.benchmark.definitions.stored import FORMAT_VERSION, TaskMaker, read_definition
from hapvr.benchmark.definitions.svd import read_svd, svd_tasks
from hapvr.benchmark.definitions.vcdb import read_vcdb, vcdb_tasks
from hapvr.errors import DataError

KINDS: dict[str, TaskMaker] = {
    "fivr": fivr_tasks,
    "evve": evve_tasks,
    "svd": svd_tasks,
    "vcdb": vcdb_tasks,
    "cc_web_video": cc_web_video_tasks,
    MARKS: marks_tasks,
}


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """A benchmark known by name. shipped: its ids and labels are in this package; read: reads its published files."""

    name: str
    description: str
    published_files: str
    shipped: bool
    read: Callable[..., BenchmarkDefinition]


CATALOG = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name="fivr-5k",
            description="FIVR-5K: 50 queries, 5,000 videos; DSVR, CSVR, ISVR, DSVD, CSVD, ISVD, normal and hard",
            published_files="annotation.json, fivr_5k.json, easy_duplicates.txt",
            shipped=True,
            read=read_fivr,
        ),
        CatalogEntry(
            name="fivr-200k",
            description="FIVR-200K: 100 queries, 225,960 videos; the same tasks",
            published_files="annotation.json, youtube_ids.txt, easy_duplicates.txt",
            shipped=True,
            read=read_fivr,
        ),
        CatalogEntry(
            name="evve",
            description="EVVE: 620 queries, 2,373 videos of 13 events",
            published_files="annots/*.dat or evve.json",
            shipped=True,
            read=read_evve,
        ),
        CatalogEntry(
            name="svd",
            description="SVD: 206 queries, 6,355 labelled pairs; the unlabelled videos only with its files",
            published_files="test_groundtruth, unlabeled-data-id",
            shipped=True,
            read=read_svd,
        ),
        CatalogEntry(
            name="cc_web_video",
            description="CC_WEB_VIDEO: 24 query sets, 13,129 videos; four variants of mAP",
            published_files="cc_web_video.json or Video_List.txt, Seed.txt, GT/GT_*.rst",
            shipped=True,
            read=read_cc_web_video,
        ),
        CatalogEntry(
            name="vcdb",
            description="VCDB core: 528 videos, each a query against the others",
            published_files="annotation/*.txt, core_dataset/",
            shipped=False,
            read=read_vcdb,
        ),
        CatalogEntry(
            name="vcdb-distractors",
            description="VCDB core against core and 100,000 distractors",
            published_files="annotation/*.txt, core_dataset/, distractors.txt or background_dataset/",
            shipped=False,
            read=read_vcdb,
        ),
        CatalogEntry(
            name="vcsl",
            description="VCSL: pairs of videos with the true times of every copied part, for --segments",
            published_files="label_file*.json, pair_file*.csv",
            shipped=False,
            read=read_vcsl,
        ),
        CatalogEntry(
            name="vsc2022",
            description="VSC2022: copied parts within videos, with true times, for --segments",
            published_files="*ground_truth*.csv, *query_metadata.csv, *reference_metadata.csv",
            shipped=False,
            read=read_vsc2022,
        ),
    )
}


def list_definitions() -> dict[str, str]:
    """Names and descriptions of the known benchmarks. Those that are not shipped say which files they need."""
    return {
        entry.name: entry.description if entry.shipped else f"{entry.description} (needs {entry.published_files})"
        for entry in CATALOG.values()
    }


def load_definition(name_or_folder: str | Path, *, published_files: Path | None = None) -> BenchmarkDefinition:
    """A benchmark by its name, or the one in a folder with a benchmark.json.

    published_files: read the named benchmark from this folder of its authors' files instead of the shipped tables.
    Raises DataError where there is no such benchmark, or where it is not shipped and no folder is given.
    """
    entry = CATALOG.get(str(name_or_folder))
    if entry is not None and published_files is not None:
        return entry.read(published_files, name=entry.name)
    if entry is not None and entry.shipped:
        with resources.as_file(resources.files("hapvr.benchmark") / "data" / entry.name) as folder:
            return _from_folder(folder)
    if entry is not None:
        raise DataError(
            f"benchmark {entry.name}: its ids are not shipped; give the folder of its published files "
            f"({entry.published_files})"
        )
    folder = Path(name_or_folder)
    if not (folder / "benchmark.json").is_file():
        raise DataError(
            f"benchmark {str(name_or_folder)!r}: neither a known name ({', '.join(CATALOG)}) nor a folder with a "
            "benchmark.json"
        )
    return _from_folder(folder)


def _from_folder(folder: Path) -> BenchmarkDefinition:
    head = read_head(folder / "benchmark.json")
    kind, version = head["kind"], head["format_version"]
    if kind == "clips" and version in CLIPS_FORMATS:
        return read_clips(folder, head=head)
    if kind in KINDS and version == FORMAT_VERSION:
        return read_definition(folder, head=head, make_tasks=KINDS[kind])
    raise DataError(
        f"{folder / 'benchmark.json'}: kind {kind!r:.60} in format {version}; this version reads "
        f"clips in formats {CLIPS_FORMATS[0]} to {CLIPS_FORMATS[-1]}, and {', '.join(KINDS)} in format {FORMAT_VERSION}"
    )
