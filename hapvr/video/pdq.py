"""PDQ, Meta's perceptual hash of pictures (256 bits), and lists of such hashes as people share them
with ThreatExchange.

Written from "The TMK+PDQF Video-Hashing Algorithm and the PDQ Image-Hashing Algorithm", hashing.pdf
of https://github.com/facebook/ThreatExchange, whose recommended distance and quality are those
here.
"""

import csv
import io
import re
import warnings
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hapvr.errors import DataError
from hapvr.files import require_regular
from hapvr.tables import MAX_USER_BYTES

MAX_DISTANCE, MIN_QUALITY = 31, 50
"""Bits in which hashes of one picture differ at most, others in about 128; the quality from which
on a frame is compared."""
MAX_LINE_BYTES, MAX_LINES_FOR_HASH = 1 << 12, 100
"""Longer lines, or more of them for each hash and for the first thousand that have none, are no
list."""
Hashes = NDArray[np.uint8]
"""[N, 32], the bytes of hashes in the order of their hexadecimal digits."""

_FREQUENCY, _PLACE = np.arange(1, 17)[:, None], np.arange(64) + 0.5
_COSINES = np.sqrt(1 / 32) * np.cos(np.pi / 64 * _FREQUENCY * _PLACE)
_HASH = re.compile("[0-9a-fA-F]{64}")
_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]*)?")
_VPDQ = re.compile(f"(?:.*,)?[0-9]+,([0-9.]+),{_HASH.pattern},[-+.0-9e]+(?:,.*)?")


def pdq(picture: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
    """The hash [32] of a picture [3, H, W] RGB, and its quality in [0, 100]."""
    luma = np.tensordot((0.299, 0.587, 0.114), picture, axes=1)
    small = _smoothing(luma.shape[0]) @ luma @ _smoothing(luma.shape[1]).T
    edges = sum(np.trunc(np.abs(np.diff(small, axis=axis)) * (100 / 255)).sum() for axis in (0, 1))
    coefficients = (_COSINES @ small @ _COSINES.T).ravel()[
        ::-1
    ]  # a hash begins with the highest frequencies
    return np.packbits(coefficients > np.median(coefficients)), int(min(edges // 90, 100))


@lru_cache(16)
def _smoothing(pixels: int) -> NDArray[np.float64]:
    """[64, pixels]: takes a row of luma through two box filters, and then the centre of every 64th
    of it. A box has a 128th of the pixels, rounded up, of which an even number reaches further to
    the right; it is cut off at the edges."""
    box, offset = -(-pixels // 128), np.arange(pixels) - np.arange(pixels)[:, None]
    inside = (offset >= -((box - 1) // 2)) & (offset <= box // 2)
    mean = inside / inside.sum(axis=1, keepdims=True)
    return np.asarray(mean[(_PLACE * pixels / 64).astype(int)] @ mean)


def read_hashes(path: Path) -> tuple[Hashes, list[tuple[int, str]]]:
    """The hashes of a text or CSV file with one in each line, and the line's number, from 1, and
    other fields of each.

    Left out are empty lines, a header (a first line without a digit), lines below MIN_QUALITY by
    their column `quality` or as vPDQ's (frame, quality, hash, timestamp), and, with a warning,
    others. Raises OSError, and DataError if nothing is left."""
    require_regular(path)
    hashes, places, broken = list[bytes](), list[tuple[int, str]](), list[int]()
    column: int | None = None
    data = io.BytesIO(path.read_bytes() if path.stat().st_size <= MAX_USER_BYTES else b"")
    for number, raw in enumerate(iter(partial(data.readline, MAX_LINE_BYTES), b""), start=1):
        if len(raw) == MAX_LINE_BYTES or number > MAX_LINES_FOR_HASH * (len(hashes) + 1000):
            hashes.clear()  # this is another kind of file
            break
        line = raw.decode("utf-8-sig", errors="backslashreplace").strip()
        fields = [
            field.strip(' "')
            for field in next(csv.reader([line.replace("\r", " ")], skipinitialspace=True), [])
        ]
        if number == 1 and line and not re.search("[0-9]", line):  # a header
            lower = [field.lower() for field in fields]
            column = (
                lower.index("quality") if "quality" in lower else MAX_LINE_BYTES
            )  # no line has so many
        found, vpdq = (
            [field for field in fields if _HASH.fullmatch(field)],
            _VPDQ.fullmatch(",".join(fields)),
        )
        quality = (
            (vpdq[1] if vpdq else "") if column is None else "".join(fields[column : column + 1])
        )
        if len(found) != 1:
            broken += [number] if line and (number > 1 or re.search("[0-9]", line)) else []
        elif not _NUMBER.fullmatch(quality) or float(quality) >= MIN_QUALITY:
            hashes.append(bytes.fromhex(found[0]))
            places.append(
                (number, ", ".join(field for field in fields if field not in ("", *found))[:200])
            )
    if not hashes:
        said = (
            f"hardly a line has one PDQ hash of 64 hexadecimal digits, of a quality of "
            f"{MIN_QUALITY} or more, or it has "
        )
        said += f"more than {MAX_USER_BYTES} bytes"
        raise DataError(
            f"{path}: {said}; wanted a text or CSV file as `hapvr pdq export` writes it"
        )
    if broken:
        named = ", ".join(map(str, broken[:10])) + f" and {len(broken) - 10} more" * (
            len(broken) > 10
        )
        warnings.warn(f"{path}: lines without a hash, or with several, are left out: {named}")
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32), places


def distances(one: Hashes, other: Hashes) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Bits that differ from the nearest hash of the other list, of those of one [N], and the other
    way round [M]; 256 for none."""
    ours, theirs = (np.ascontiguousarray(hashes).view(np.uint64).T for hashes in (one, other))
    near, back = np.full(len(one), 256, np.uint16), np.full(len(other), 256, np.uint16)
    step = max(1, (1 << 19) // max(1, len(one)))  # a block needs about 20 MB
    for part in (slice(start, start + step) for start in range(0, len(other), step)):
        bits = np.bitwise_count(ours[:, :, None] ^ theirs[:, None, part]).sum(
            axis=0, dtype=np.uint16
        )
        near, back[part] = np.minimum(near, bits.min(axis=1)), bits.min(axis=0, initial=256)
    return near, back
