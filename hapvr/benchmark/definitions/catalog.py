"""Finding a benchmark by name or folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.clips import CLIPS, read_clips
from hapvr.benchmark.definitions.files import read_head
from hapvr.benchmark.definitions.fivr import fivr_tasks, read_fivr
from hapvr.benchmark.definitions.marks import MARKS, marks_tasks
from hapvr.benchmark.definitions.retrieval_sets import (
    cc_web_video_tasks,
    evve_tasks,
    read_cc_web_video,
    read_evve,
    read_svd,
    svd_tasks,
)
from hapvr.benchmark.definitions.stored import TaskMaker, read_definition
from hapvr.benchmark.definitions.vcdb import read_vcdb, read_vcsl, read_vsc2022, vcdb_tasks
from hapvr.errors import DamagedError, DataError

KINDS: dict[str, TaskMaker] = {
    "fivr": fivr_tasks,
    "evve": evve_tasks,
    "svd": svd_tasks,
    "vcdb": vcdb_tasks,
    "cc_web_video": cc_web_video_tasks,
    MARKS: marks_tasks,
}


@dataclass(frozen=True)
class CatalogEntry:
    """A benchmark known by name. read: reads its published files; shipped: its ids and labels are in this package."""

    name: str
    read: Callable[..., BenchmarkDefinition]
    published_files: str
    description: str
    shipped: bool = True


SIX = "DSVR, CSVR, ISVR, DSVD, CSVD, ISVD, normal and hard"
FIVR_FILES = "annotation.json, easy_duplicates.txt"
VCDB_FILES = "annotation/*.txt, core_dataset/"
CC_FILES = "cc_web_video.json or Video_List.txt, Seed.txt, GT/GT_*.rst"
VSC_FILES = "*ground_truth*.csv, *query_metadata.csv, *reference_metadata.csv"
ENTRIES = (
    CatalogEntry("fivr-5k", read_fivr, f"{FIVR_FILES}, fivr_5k.json", f"FIVR-5K: 50 queries, 5,000 videos; {SIX}"),
    CatalogEntry(
        "fivr-200k",
        read_fivr,
        f"{FIVR_FILES}, youtube_ids.txt",
        "FIVR-200K: 100 queries, 225,960 videos; the same tasks",
    ),
    CatalogEntry("evve", read_evve, "annots/*.dat or evve.json", "EVVE: 620 queries, 2,373 videos of 13 events"),
    CatalogEntry(
        "svd",
        read_svd,
        "test_groundtruth, unlabeled-data-id",
        "SVD: 206 queries, 6,355 labelled pairs; the unlabelled videos only with its files",
    ),
    CatalogEntry(
        "cc_web_video", read_cc_web_video, CC_FILES, "CC_WEB_VIDEO: 24 query sets, 13,129 videos; four variants of mAP"
    ),
    CatalogEntry("vcdb", read_vcdb, VCDB_FILES, "VCDB core: 528 videos, each a query against the others", False),
    CatalogEntry(
        "vcdb-distractors",
        read_vcdb,
        f"{VCDB_FILES}, distractors.txt or background_dataset/",
        "VCDB core against core and 100,000 distractors",
        False,
    ),
    CatalogEntry(
        "vcsl",
        read_vcsl,
        "label_file*.json, pair_file*.csv",
        "VCSL: pairs of videos with the true times of every copied part, for --segments",
        False,
    ),
    CatalogEntry(
        "vsc2022",
        read_vsc2022,
        VSC_FILES,
        "VSC2022: copied parts within videos, with true times, for --segments",
        False,
    ),
)
CATALOG = {entry.name: entry for entry in ENTRIES}


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
    folder = Path(name_or_folder)
    if entry is not None or not (folder / "benchmark.json").is_file():
        raise DataError(
            f"benchmark {entry.name}: its ids are not shipped; give the folder of its published files "
            f"({entry.published_files})"
            if entry is not None
            else f"benchmark {str(name_or_folder)!r}: neither a known name ({', '.join(CATALOG)}) nor a folder with a "
            "benchmark.json"
        )
    return _from_folder(folder)


def _from_folder(folder: Path) -> BenchmarkDefinition:
    head = read_head(folder / "benchmark.json")
    if head["kind"] == CLIPS:
        return read_clips(folder, head=head)
    if head["kind"] in KINDS:
        return read_definition(folder, head=head, make_tasks=KINDS[head["kind"]])
    raise DamagedError(
        f"{folder / 'benchmark.json'}: kind {head['kind']!r:.60}; wanted {CLIPS}, {', '.join(KINDS)}. Write it again"
    )
