"""Pictures in rows, as assets show them."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

GAP_PX = 4


def picture_grid(rows: Sequence[Sequence[Image.Image]], *, cell_px: tuple[int, int]) -> Image.Image:
    """Rows of pictures that are no larger than a cell of (width, height), with a gap between them."""
    width, height = cell_px[0] + GAP_PX, cell_px[1] + GAP_PX
    grid = Image.new("RGB", (width * max([1, *map(len, rows)]), height * max(1, len(rows))), "white")
    for row, pictures in enumerate(rows):
        for column, picture in enumerate(pictures):
            grid.paste(picture, (column * width, row * height))
    return grid
