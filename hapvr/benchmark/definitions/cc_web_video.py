"""CC_WEB_VIDEO (Wu et al., ACM MM 2007): near-duplicate web videos, 24 query sets."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import polars as pl

from hapvr.benchmark.definition import EXCLUSION_SCHEMA, LABEL_SCHEMA, BenchmarkDefinition, Pool, Task
from hapvr.benchmark.definitions.files import read_json, read_lines, split_line
from hapvr.errors import DataError

NEAR_DUPLICATE = frozenset("ESLMV")
CLEANED = "cleaned"


def cc_web_video_tasks(labels: Collection[str], exclusions: Collection[str] = ()) -> tuple[Task, ...]:
    """mAP over the query's own set and mAP_star over the whole database; mAP_c and mAP_c_star on the cleaned labels.

    The query stays in its ranking and counts as a hit, and a missing positive costs recall under every policy.
    """
    pools: tuple[tuple[str, Pool], ...] = (("", "labelled"), ("_star", "database"))
    return tuple(
        Task(
            name=f"mAP{middle}{suffix}",
            metric="mAP",
            positives=NEAR_DUPLICATE,
            pool=pool,
            exclusion=exclusion,
            query_stays=True,
            official_missing_positive="misses",
        )
        for middle, exclusion in (("", None), ("_c", CLEANED))
        if exclusion is None or exclusion in exclusions
        for suffix, pool in pools
    )


def read_cc_web_video(folder: Path, *, name: str = "cc_web_video") -> BenchmarkDefinition:
    """CC_WEB_VIDEO from Video_List.txt, Seed.txt and GT/GT_<set>.rst as published, or else from cc_web_video.json.

    Ids are "<set>/<file name without extension>". Labelled numbers without a file are kept as "unnamed/<number>", so
    that they cost recall. The JSON file adds the cleaned annotation ("excluded"), without which the two cleaned
    numbers are left out.
    """
    if (folder / "Video_List.txt").is_file():
        names, seeds, labels, excluded = _published(folder)
    else:
        content = read_json(folder / "cc_web_video.json")
        names = {int(number): video for video, number in content["index"].items()}
        numbers = {video: number for number, video in names.items()}
        seeds = [numbers[video] for video in content["queries"]]
        labels = [{int(number): label for number, label in found.items()} for found in content["ground_truth"]]
        excluded = content["excluded"]
    queries = [names[number] for number in seeds]
    rows = [
        (query, names.get(number, f"unnamed/{number}"), label)
        for query, found in zip(queries, labels, strict=True)
        for number, label in found.items()
    ]
    hidden = [
        (CLEANED, query, names[number])
        for query, numbers in zip(queries, excluded, strict=True)
        for number in numbers
        if number in names
    ]
    return BenchmarkDefinition(
        name=name,
        kind="cc_web_video",
        queries=tuple(queries),
        database=tuple(dict.fromkeys([*names.values(), *(reference for _, reference, _ in rows)])),
        labels=pl.DataFrame(rows, schema=LABEL_SCHEMA, orient="row"),
        exclusions=pl.DataFrame(hidden, schema=EXCLUSION_SCHEMA, orient="row"),
        tasks=cc_web_video_tasks(NEAR_DUPLICATE, [CLEANED] if hidden else []),
    )


def _published(folder: Path) -> tuple[dict[int, str], list[int], list[dict[int, str]], list[list[int]]]:
    """Names by number, the query of each set, labels by number of each set, and no exclusions."""
    names = {}
    video_list = folder / "Video_List.txt"
    for line in read_lines(video_list):
        number, query_set, _, file = split_line(line, path=video_list, columns=4, separator="\t")[:4]
        names[_number(number, video_list)] = f"{query_set}/{Path(file).stem}"
    seeds, labels = [], []
    seed_list = folder / "Seed.txt"
    for entry in read_lines(seed_list):
        query_set, number = split_line(entry, path=seed_list, columns=2)[:2]
        seeds.append(_number(number, seed_list))
        truth = folder / "GT" / f"GT_{query_set}.rst"
        pairs = [split_line(row, path=truth, columns=2)[:2] for row in read_lines(truth)]
        # -1 marks videos that no longer existed when the labels were made
        labels.append({_number(video, truth): label for video, label in pairs if label != "-1"})
    return names, seeds, labels, [[] for _ in seeds]


def _number(text: str, path: Path) -> int:
    if not text.isdigit():
        raise DataError(f"{path}: {text!r} is not a video number")
    return int(text)
