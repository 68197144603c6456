"""The file of mined pairs in the folder of a training."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hapvr.errors import DataError
from hapvr.files import read_json_as, write_atomic
from hapvr.settings import Rate

MINED_NAME = "mined_pairs.json"
RESTART = "start the training again under another name"


@dataclass(frozen=True)
class MinedPairs:
    """pairs: of training videos, the surest first. model: whose search found them.

    probe_pairs: pairs of a query and a video of the validation benchmark that the same rule finds. probe_precision: the
    part of them that is labelled as relevant; None for too few.
    """

    pairs: tuple[tuple[str, str], ...]
    model: str
    probe_pairs: Annotated[int, Field(ge=0, lt=2**63)]
    probe_precision: Rate | None

    def summary(self) -> dict[str, Any]:
        """With the number of pairs instead of the pairs."""
        return asdict(self) | {"pairs": len(self.pairs)}


def write_mined_pairs(folder: Path, found: MinedPairs) -> None:
    with write_atomic(folder / MINED_NAME) as part:
        part.write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")


def read_mined_pairs(folder: Path) -> MinedPairs | None:
    """The pairs of a training; None where it has none. Raises DamagedError."""
    place = folder / MINED_NAME
    if not place.is_file():
        return None
    return read_json_as(place, MinedPairs, remedy=RESTART)


def require_training_pairs(found: MinedPairs, video_ids: Collection[str], *, place: Path) -> None:
    """Refuse a pair of a video with itself, or with one that is not among the training videos, `video_ids`.

    place: of the file, for the error. Raises DataError.
    """
    for first, second in found.pairs:
        if first == second:
            raise DataError(f"{place}: the pair {first}, {second} is a video and itself; {RESTART}")
        if strange := [video_id for video_id in (first, second) if video_id not in video_ids]:
            raise DataError(
                f"{place}: the pair {first}, {second}: {strange[0]} is no training video of this collection; {RESTART}"
            )
