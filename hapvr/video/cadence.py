"""Pictures of a film that show nothing new: those that a converter has repeated, or mixed of their
neighbours, to have more of them a second; and those woven of two, as of an interlaced film."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

RUN_PICTURES = 14
"""Pictures in a row that are looked at: of 30 a second made of 25, two are repeated."""
MOVING_SHARE = 0.05
"""Part of the blocks that is looked at, those in which most moves: most of a scene may stand
still."""
MOVING_BLOCK_PX = 8
"""Side of a block of pictures at half size."""
MOVES = 0.5
"""Mean difference of neighbours there in grey levels, of 255, below which nothing moves."""
REPEATED = 0.45
"""Difference from the picture before, as a part of the second largest of four beside it, below
which it is the same one, compressed again. Films at CRF 20 to 31: 0.1 to 0.55 of those that are
repeated, and 0.6 or more of most others."""
MIXED = 0.3
"""Difference of a picture from the mean of both beside it, as a part of that of its neighbours from
theirs, below which it is that mean. Mixed: 0.06 to 0.12; films: 0.5 or more."""
BLOCK_PX = 16
EDGES = 4.0
"""Mean step from row to row of a block, of 255, from which on it may be woven."""
MOVED = 4.0
"""Mean difference of a block from the picture before or behind, of 255, from which on it may be: of
what stands still both pictures have the same rows."""
LEAST_BLOCKS = 4
"""How many such blocks tell something."""
WOVEN_STEP = 1.3
"""Times as large as the step over two rows, from which on it is woven."""
WOVEN = 0.1
"""Part of such blocks in a picture from which on it is woven: 0.17 to 0.54 in three films with
woven pictures, one of them nearly still, and 0 in 37 without."""
WOVEN_EVERY = 4
"""Of how many pictures one is looked at."""


def is_woven(runs: Sequence[Sequence[NDArray[np.uint8]]]) -> bool:
    """Whether pictures have the rows of two moments in turn.

    runs: of grey pictures [H, W] in a row, from a few places
    """
    return any(
        _woven_share(*run[place - 1 : place + 2]) > WOVEN
        for run in runs
        if _are_of_one_size(run)
        for place in range(1, len(run) - 1, WOVEN_EVERY)
    )


def _woven_share(
    before: NDArray[np.uint8], picture: NDArray[np.uint8], after: NDArray[np.uint8]
) -> float:
    """The part of the blocks with moving edges in which rows differ more from the next one than
    from the one behind it."""
    rows = picture.astype(np.float32)
    changes = np.maximum(np.abs(rows - before), np.abs(rows - after))[1:-1]
    near = _block_means(np.abs(rows[1:-1] - rows[:-2]))
    far = _block_means(np.abs(rows[2:] - rows[:-2]))
    has_moving_edges = (near > EDGES) & (_block_means(changes) > MOVED)
    if has_moving_edges.sum() < LEAST_BLOCKS:
        return 0.0
    return float(np.mean(near[has_moving_edges] > WOVEN_STEP * far[has_moving_edges]))


def _block_means(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """[H, W] -> the mean of each block, as far as whole blocks go."""
    down = values.shape[0] // BLOCK_PX
    wide = values.shape[1] // BLOCK_PX
    blocks = values[: down * BLOCK_PX, : wide * BLOCK_PX]
    means = blocks.reshape(down, BLOCK_PX, wide, BLOCK_PX).mean(axis=(1, 3))
    return np.asarray(means, np.float32)


def share_of_new(runs: Sequence[Sequence[NDArray[np.uint8]]]) -> float | None:
    """The part of the pictures that show something new, in (0, 1]; None where nothing moves.

    runs: of grey pictures [H, W] in a row, from a few places
    """
    shares = [share for share in map(_share_of_new, runs) if share is not None]
    return float(np.median(shares)) if shares else None


def _share_of_new(run: Sequence[NDArray[np.uint8]]) -> float | None:
    """None where nothing moves, or the run is too short to tell."""
    if len(run) < RUN_PICTURES or not _are_of_one_size(run):
        return None
    pictures = _where_most_moves(run)
    steps = np.array([np.abs(after - before).mean() for before, after in pairwise(pictures)])
    around = np.sort([steps[:-4], steps[1:-3], steps[3:-1], steps[4:]], axis=0)
    # of pictures that come three times, one of two neighbours is repeated, too
    usual = around[2]
    if np.median(usual) < MOVES:
        return None
    repeated = float(np.mean(steps[2:-2] < REPEATED * usual))
    mixed = 0.5 if _every_second_is_mixed(pictures) else 0.0
    return 1 - max(repeated, mixed)


def _are_of_one_size(run: Sequence[NDArray[np.uint8]]) -> bool:
    return all(picture.shape == run[0].shape for picture in run)


def _where_most_moves(run: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
    """The blocks of grey pictures [H, W] at half size in which most moves, flat: [N, P]."""
    pictures = np.stack([picture[::2, ::2] for picture in run]).astype(np.float32)
    side = min(MOVING_BLOCK_PX, *pictures.shape[1:])
    down = pictures.shape[1] // side
    wide = pictures.shape[2] // side
    whole = pictures[:, : down * side, : wide * side]
    blocks = whole.reshape(-1, down, side, wide, side).transpose(0, 1, 3, 2, 4)
    blocks = blocks.reshape(len(run), down * wide, side * side)
    movement = np.abs(np.diff(blocks, axis=0)).mean(axis=(0, 2))
    num_blocks = max(1, round(MOVING_SHARE * len(movement)))
    most = np.argsort(movement)[-num_blocks:]
    return np.asarray(blocks[:, most].reshape(len(run), -1), np.float32)


def _every_second_is_mixed(pictures: NDArray[np.float32]) -> bool:
    """Whether every second picture of [N, P] is the mean of those beside it."""
    middles = zip(pictures, pictures[1:], pictures[2:], strict=False)
    residues = [
        float(np.abs(picture - (before + after) / 2).mean()) for before, picture, after in middles
    ]
    even = float(np.median(residues[::2]))
    odd = float(np.median(residues[1::2]))
    return min(even, odd) < MIXED * max(even, odd)
