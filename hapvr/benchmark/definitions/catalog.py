"""Finding a benchmark by name or folder."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.published import read_cc_web_video, read_evve, read_fivr, read_svd, read_vcdb
from hapvr.benchmark.definitions.stored import read_definition
from hapvr.errors import DataError


class _Entry(NamedTuple):
    """A benchmark known by name. read: reads its published files; shipped: its ids and labels are in this package."""

    read: Callable[..., BenchmarkDefinition]
    published_files: str
    description: str
    shipped: bool = True


_SIX = "DSVR, CSVR, ISVR, DSVD, CSVD, ISVD, normal and hard"
_FIVR = "annotation.json, easy_duplicates.txt"
_VCDB = "annotation/*.txt, core_dataset/"
CATALOG = {
    "fivr-5k": _Entry(read_fivr, f"{_FIVR}, fivr_5k.json", f"FIVR-5K: 50 queries, 5,000 videos; {_SIX}"),
    "fivr-200k": _Entry(
        read_fivr, f"{_FIVR}, youtube_ids.txt", "FIVR-200K: 100 queries, 225,960 videos; the same tasks"
    ),
    "evve": _Entry(read_evve, "evve.json", "EVVE: 620 queries, 2,373 videos of 13 events"),
    "svd": _Entry(
        read_svd,
        "test_groundtruth, unlabeled-data-id",
        "SVD: 206 queries, 6,355 labelled pairs; the unlabelled videos only with its files",
    ),
    "cc_web_video": _Entry(
        read_cc_web_video, "cc_web_video.json", "CC_WEB_VIDEO: 24 query sets, 13,129 videos; four variants of mAP"
    ),
    "vcdb": _Entry(read_vcdb, _VCDB, "VCDB core: 528 videos, each a query against the others", False),
    "vcdb-distractors": _Entry(
        read_vcdb,
        f"{_VCDB}, distractors.txt or background_dataset/",
        "VCDB core against core and 100,000 distractors",
        False,
    ),
}


def list_definitions() -> dict[str, str]:
    """Names and descriptions of the known benchmarks. Those that are not shipped say which files they need."""
    return {
        name: entry.description if entry.shipped else f"{entry.description} (needs {entry.published_files})"
        for name, entry in CATALOG.items()
    }


def load_definition(name_or_folder: str | Path, *, published_files: Path | None = None) -> BenchmarkDefinition:
    """A benchmark by its name, or the one in a folder with a benchmark.json.

    published_files: read the named benchmark from this folder of its authors' files instead of the shipped tables.
    Raises DataError where there is no such benchmark, or where it is not shipped and no folder is given.
    """
    name = str(name_or_folder)
    entry = CATALOG.get(name)
    if entry is None:
        if not (Path(name) / "benchmark.json").is_file():
            raise DataError(
                f"benchmark {name!r}: neither a known name ({', '.join(CATALOG)}) nor a folder with a benchmark.json"
            )
        return read_definition(Path(name))
    if published_files is not None:
        return entry.read(published_files, name=name)
    if not entry.shipped:
        raise DataError(
            f"benchmark {name}: its ids are not shipped; give the folder of its published files ({entry.published_files})"
        )
    with resources.as_file(resources.files("hapvr.benchmark") / "data" / name) as folder:
        return read_definition(folder)
