"""What the step of duplicates has found, as groups and pairs that a page can list; and that step in the background, for
people who have no Dagster."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

from hapvr.errors import HapvrError
from hapvr.scorer.access import Deadline
from hapvr.search.duplicates import KINDS, DuplicatePair, GroupMember
from hapvr.search.match import verdict_of
from hapvr.serving.answers import DuplicateJobState
from hapvr.serving.collection import OpenIndex
from hapvr.serving.refusals import without_paths
from hapvr.serving.requests import DuplicateFilter
from hapvr.steps.duplicates import (
    copy_groups,
    duplicate_pairs,
    make_duplicate_groups,
    make_duplicate_pairs,
    outdated_pairs,
)

SAME_DURATION_S = 0.5
_LOG = logging.getLogger(__name__)


def listed(index: OpenIndex, wanted: DuplicateFilter) -> list[dict[str, Any]]:
    """Groups of copies, then pairs of the other kinds, the largest and surest first."""
    pairs = duplicate_pairs(index.project, index.searcher, min_probability=wanted.min_probability)
    by_ids = {(pair.first, pair.second): pair for pair in pairs}
    groups = groupby(copy_groups(index.searcher, pairs), key=lambda member: member.group)
    rows = [_group(name, list(members), by_ids, index) for name, members in groups]
    rows += [_pair(pair, index) for pair in pairs if pair.kind != "copy"]

    def admitted(row: Mapping[str, Any]) -> bool:
        inside = any(one["id"].startswith(wanted.folder) for one in row["members"])
        return inside and wanted.kind in ("", row["kind"])

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        members = row["members"]
        return KINDS.index(row["kind"]), -len(members), -row["probability"], [one["id"] for one in members]

    return sorted(filter(admitted, rows), key=place)


def _group(
    name: str, members: Sequence[GroupMember], by_ids: Mapping[tuple[str, str], DuplicatePair], index: OpenIndex
) -> dict[str, Any]:
    medoid = next(member.video_id for member in members if member.medoid)
    rows = []
    for member in members:
        row = index.video_row(member.video_id) | {"keep": member.keep, "reason": member.reason, "medoid": member.medoid}
        if not member.medoid:
            row |= _seen_from(by_ids[min(medoid, member.video_id), max(medoid, member.video_id)], medoid)
        rows.append({"mark": ""} | row)
    return _row("copy", name, rows)


def _pair(pair: DuplicatePair, index: OpenIndex) -> dict[str, Any]:
    first, second = (index.video_row(one) | {"medoid": one == pair.first} for one in (pair.first, pair.second))
    return _row(pair.kind, "", [first, second | _seen_from(pair, pair.first)])


def _row(kind: str, group: str, members: list[dict[str, Any]]) -> dict[str, Any]:
    probability = min(row["probability"] for row in members if "probability" in row)
    differing = [
        field for field in ("width_px", "height_px", "codec", "num_bytes") if len({row[field] for row in members}) > 1
    ]
    seconds = [row["duration_s"] or 0.0 for row in members]
    if max(seconds) - min(seconds) > SAME_DURATION_S:
        differing.append("duration_s")
    return {"kind": kind, "group": group, "probability": probability, "differing": differing, "members": members}


def _seen_from(pair: DuplicatePair, video_id: str) -> dict[str, Any]:
    """What is said of a pair, how much of both sides the common parts cover, and where the first begins, with this video as
    the query."""
    sides = [(pair.first_covered, pair.first_start_s), (pair.second_covered, pair.second_start_s)]
    query, reference = sides if pair.first == video_id else sides[::-1]
    return {
        "probability": pair.probability,
        "mark": pair.mark,
        "verdict": verdict_of(pair.probability, mark=pair.mark, same_file=pair.same_file),
        "same_file": pair.same_file,
        "query_covered": query[0],
        "reference_covered": reference[0],
        "query_start_s": query[1],
        "reference_start_s": reference[1],
    }


class DuplicateJob:
    """Does what `hapvr duplicates` does, once at a time. One thread alone may start it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="duplicates")
        self._end = Deadline(None)
        self.state = DuplicateJobState(running=False, done=0, total=0, error="")

    def start(self, index: OpenIndex) -> DuplicateJobState:
        """Begin with the shards that were not looked through yet, unless that is under way."""
        if not self.state.running:
            self.state = DuplicateJobState(running=True, done=0, total=0, error="")
            self._pool.submit(self._run, index, self.state)
        return self.state

    def close(self) -> None:
        """End it and wait for that; shards that are finished stay."""
        self._end.cancel()
        self._pool.shutdown()

    def _run(self, index: OpenIndex, state: DuplicateJobState) -> None:
        def progress(number: int, _total: int, _frames: int = 0, /) -> None:
            self._end.check()
            state.done = before + number

        before = 0
        try:
            counts = {key: len(index.searcher.collection.video_ids(key)) for key in outdated_pairs(index.project)}
            state.total = sum(counts.values())
            for key, count in counts.items():
                make_duplicate_pairs(index.project, index.searcher, key, progress=progress)
                before += count
            make_duplicate_groups(index.project, index.searcher)
        except HapvrError as error:
            state.error = without_paths(str(error))
        except Exception:
            _LOG.exception("duplicates: unforeseen error")
            state.error = "the search for duplicates failed; the log of the service says where. Please report it"
        finally:
            state.running = False
