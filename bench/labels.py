"""Which clips of a pile show the same, so that finding one for the other is not a mistake."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from hapvr.errors import DataError

SHARED_FOOTAGE = Path(__file__).with_name("shared_footage.csv")
COLUMNS = ("clip", "other", "kind", "note")
SHARED = ("same_footage", "background")
OTHER_TAKE = "same_scene_other_take"


@dataclass(frozen=True)
class FootageLabels:
    """Labelled pairs of clips, in both directions, by file name."""

    shared: Mapping[str, frozenset[str]]
    """clip -> clips with some of its footage"""
    other_takes: Mapping[str, frozenset[str]]
    """clip -> clips that show its scene at another time"""

    def sharing(self, clips: Collection[str]) -> frozenset[str]:
        """These clips, and all that share footage with one of them."""
        return frozenset(clips) | _linked(self.shared, clips)

    def retaking(self, clips: Collection[str]) -> frozenset[str]:
        """All clips that show the scene of one of these at another time."""
        return _linked(self.other_takes, clips)


def _linked(links: Mapping[str, frozenset[str]], clips: Collection[str]) -> frozenset[str]:
    """All clips that are linked to one of these."""
    return frozenset(linked for clip in clips for linked in links.get(clip, ()))


def read_labels(path: Path = SHARED_FOOTAGE) -> FootageLabels:
    """Read a table of labelled pairs, CSV with COLUMNS below comments that start with `#`.

    Raises:
        DataError: for other columns, an unknown kind, or a pair of a clip with itself.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    if tuple(rows.fieldnames or ()) != COLUMNS:
        raise DataError(
            f"labels: {path.name} has the columns {rows.fieldnames}; expected {', '.join(COLUMNS)}"
        )

    shared: dict[str, set[str]] = defaultdict(set)
    other_takes: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        clip = row["clip"]
        second = row["other"]
        kind = row["kind"]
        if kind not in (*SHARED, OTHER_TAKE) or clip == second:
            raise DataError(
                f"labels: {path.name} has the pair {clip}, {second} of the kind {kind!r}; expected "
                f"two clips and one of {', '.join((*SHARED, OTHER_TAKE))}"
            )

        pairs = other_takes if kind == OTHER_TAKE else shared
        pairs[clip].add(second)
        pairs[second].add(clip)

    return FootageLabels(_frozen(shared), _frozen(other_takes))


def _frozen(pairs: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {clip: frozenset(others) for clip, others in pairs.items()}
