"""Labelled pairs of training videos, and their file in the folder of a training."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hapvr.files import read_json_as, write_atomic
from hapvr.train.pair_files import Copy

LABELLED_NAME = "labelled_pairs.json"


@dataclass(frozen=True)
class LabelledPair:
    """Two videos that show the same. copies: the copied part in each, in seconds, where it is known."""

    videos: tuple[str, str]
    copies: tuple[Copy, Copy] | None = None


@dataclass(frozen=True)
class LabelledPairs:
    """What a training from labelled pairs is made of.

    distractors: videos that no pair names. num_unusable: rows of the file that name a video without features.
    """

    pairs: tuple[LabelledPair, ...]
    distractors: tuple[str, ...] = ()
    num_unusable: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @property
    def digest(self) -> str:
        """Of the pairs and distractors."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Numbers instead of the videos."""
        return {
            "pairs": len(self.pairs),
            "pairs_with_copied_part": sum(pair.copies is not None for pair in self.pairs),
            "distractors": len(self.distractors),
            "unusable_rows": self.num_unusable,
            "digest": self.digest,
        }


def write_labelled_pairs(folder: Path, found: LabelledPairs) -> None:
    with write_atomic(folder / LABELLED_NAME) as part:
        part.write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")


def read_labelled_pairs(folder: Path) -> LabelledPairs | None:
    """The pairs of a training; None where it has none. Raises DamagedError."""
    place = folder / LABELLED_NAME
    if not place.is_file():
        return None
    return read_json_as(place, LabelledPairs, remedy="start the training again, which writes it anew")
