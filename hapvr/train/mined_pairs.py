"""The file of mined pairs in the folder of a training."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hapvr.files import read_json_object, write_atomic

MINED_NAME = "mined_pairs.json"


@dataclass(frozen=True)
class MinedPairs:
    """pairs: of training videos, the surest first. model: whose search found them.

    probe_pairs: pairs of a query and a video of the validation benchmark that the same rule finds. probe_precision: the
    part of them that is labelled as relevant; None for too few.
    """

    pairs: tuple[tuple[str, str], ...]
    model: str
    probe_pairs: int
    probe_precision: float | None

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
    remedy = "start the training again under another name"
    stored = read_json_object(place, keys=("pairs", "model", "probe_pairs", "probe_precision"), remedy=remedy)
    return MinedPairs(**stored | {"pairs": tuple((first, second) for first, second in stored["pairs"])})
