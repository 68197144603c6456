"""PDQ, Meta's perceptual hash of pictures (256 bits), and lists of such hashes as people share them
with ThreatExchange.

Written from "The TMK+PDQF Video-Hashing Algorithm and the PDQ Image-Hashing Algorithm", hashing.pdf
of https://github.com/facebook/ThreatExchange. Distance and quality are those that it recommends.
"""

import csv
import io
import re
import warnings
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hapvr.errors import DataError
from hapvr.files import require_regular
from hapvr.tables import MAX_USER_BYTES

MAX_DISTANCE = 31
"""The most bits in which hashes of one picture differ; those of unrelated pictures differ in about
128."""
MIN_QUALITY = 50
"""The least quality of a frame that is compared."""
MAX_LINE_BYTES = 1 << 12
"""A file with longer lines is not a list."""
MAX_LINES_FOR_HASH = 100
"""A file with more lines than this for each hash, and for a thousand more, is not a list."""
Hashes = NDArray[np.uint8]
"""[N, 32], the bytes of hashes in the order of their hexadecimal digits."""

_FREQUENCY = np.arange(1, 17)[:, None]
_PLACE = np.arange(64) + 0.5
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
    """[64, pixels]: passes a row of luma through two box filters, and then takes the centre of
    every 64th of it. A box is a 128th of the pixels wide, rounded up; an even box reaches further
    to the right. It is cut off at the edges."""
    box = -(-pixels // 128)
    offset = np.arange(pixels) - np.arange(pixels)[:, None]
    inside = (offset >= -((box - 1) // 2)) & (offset <= box // 2)
    mean = inside / inside.sum(axis=1, keepdims=True)
    return np.asarray(mean[(_PLACE * pixels / 64).astype(int)] @ mean)


def read_hashes(path: Path) -> tuple[Hashes, list[tuple[int, str]]]:
    """The hashes of a text or CSV file with one hash per line, each with its line number, from 1,
    and the other fields of the line.

    Skipped are empty lines, a header (a first line without a digit), lines below MIN_QUALITY by
    their column `quality` or in vPDQ's form (frame, quality, hash, timestamp), and, with a warning,
    all other lines without exactly one hash.

    Raises: OSError, and DataError if nothing is left.
    """
    require_regular(path)
    listed = _HashList()
    data = io.BytesIO(path.read_bytes() if path.stat().st_size <= MAX_USER_BYTES else b"")
    for number, raw in enumerate(iter(partial(data.readline, MAX_LINE_BYTES), b""), start=1):
        if len(raw) == MAX_LINE_BYTES or listed.is_unlikely(number):
            listed.hashes.clear()  # this is another kind of file
            break

        line = raw.decode("utf-8-sig", errors="backslashreplace").strip()
        is_header = number == 1 and not re.search("[0-9]", line)
        if is_header:
            listed.begin(_fields_of(line))
        elif line:
            listed.take(number, _fields_of(line))

    if not listed.hashes:
        raise DataError(
            f"{path}: hardly a line has one PDQ hash of 64 hexadecimal digits, of a quality of "
            f"{MIN_QUALITY} or more, or it has more than {MAX_USER_BYTES} bytes; expected a text "
            "or CSV file as `hapvr pdq export` writes it"
        )

    if listed.broken:
        _name_broken(path, listed.broken)
    return np.frombuffer(b"".join(listed.hashes), np.uint8).reshape(-1, 32), listed.places


@dataclass
class _HashList:
    """What was read from a list of hashes so far."""

    hashes: list[bytes] = field(default_factory=list)
    places: list[tuple[int, str]] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    """numbers of lines that have no hash, or several"""
    quality_column: int | None = None
    """by the header; None without one"""

    def is_unlikely(self, number: int) -> bool:
        """Whether a file with so few hashes up to this line is surely not a list."""
        return number > MAX_LINES_FOR_HASH * (len(self.hashes) + 1000)

    def begin(self, header: list[str]) -> None:
        """Take a first line without a digit."""
        names = [name.lower() for name in header]
        if any(names):
            # no line has so many fields as where there is no quality
            self.quality_column = names.index("quality") if "quality" in names else MAX_LINE_BYTES

    def take(self, number: int, fields: list[str]) -> None:
        """Take any other line."""
        digits = [text for text in fields if _HASH.fullmatch(text)]
        if len(digits) != 1:
            self.broken.append(number)
            return

        quality = _quality_of(fields, self.quality_column)
        if not _NUMBER.fullmatch(quality) or float(quality) >= MIN_QUALITY:
            self.hashes.append(bytes.fromhex(digits[0]))
            others = ", ".join(text for text in fields if text not in ("", *digits))
            self.places.append((number, others[:200]))


def _fields_of(line: str) -> list[str]:
    rows = csv.reader([line.replace("\r", " ")], skipinitialspace=True)
    return [text.strip(' "') for text in next(rows, [])]


def _quality_of(fields: list[str], column: int | None) -> str:
    """The quality that a line states, or "". column: from the header; None without one."""
    if column is not None:
        return fields[column] if column < len(fields) else ""
    vpdq = _VPDQ.fullmatch(",".join(fields))
    return vpdq[1] if vpdq else ""


def _name_broken(path: Path, numbers: list[int]) -> None:
    """Warn of lines, the first ten by number."""
    named = ", ".join(map(str, numbers[:10]))
    if len(numbers) > 10:
        named = f"{named} and {len(numbers) - 10} more"
    warnings.warn(f"{path}: lines without a hash, or with several, are left out: {named}")


def distances(first: Hashes, second: Hashes) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """In how many bits each hash of the first list differs from the nearest one of the second, [N],
    and the other way round, [M]; 256 where the other list is empty."""
    ours = np.ascontiguousarray(first).view(np.uint64).T
    theirs = np.ascontiguousarray(second).view(np.uint64).T
    near = np.full(len(first), 256, np.uint16)
    back = np.full(len(second), 256, np.uint16)
    step = max(1, (1 << 19) // max(1, len(first)))  # a block needs about 20 MB
    for start in range(0, len(second), step):
        part = slice(start, start + step)
        differing = np.bitwise_count(ours[:, :, None] ^ theirs[:, None, part])
        bits = differing.sum(axis=0, dtype=np.uint16)
        near = np.minimum(near, bits.min(axis=1))
        back[part] = bits.min(axis=0, initial=256)

    return near, back
