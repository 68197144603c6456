"""The views of a query: its whole picture, and fixed crops of it, which find a video that fills
only a part of the picture, as in reactions, memes and split screens.

Five crops, the centre and the four quarters, found on uploads what halves and detected borders did
not (docs/results.md).
"""

from __future__ import annotations

IN_A_PART = "in a part of the picture"
"""How answers describe a match by a crop."""

Box = tuple[slice, slice]
"""Rows and columns."""
SHARES = (
    ((0.25, 0.75), (0.25, 0.75)),
    ((0.0, 0.5), (0.0, 0.5)),
    ((0.0, 0.5), (0.5, 1.0)),
    ((0.5, 1.0), (0.0, 0.5)),
    ((0.5, 1.0), (0.5, 1.0)),
)
"""Rows and columns of each crop, as shares of height and width."""
WHOLE: Box = (slice(None), slice(None))


def crops_of(height: int, width: int) -> list[Box]:
    """The crops of a picture of this size; a picture that is too small has none."""
    if min(height, width) < 4:
        return []
    return [(_part(rows, height), _part(columns, width)) for rows, columns in SHARES]


def _part(share: tuple[float, float], size: int) -> slice:
    return slice(round(share[0] * size), round(share[1] * size))
