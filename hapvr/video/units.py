"""The units of which pictures of H.264 and HEVC are made: whether their lengths add up; and the
slices of MPEG-2: whether one lacks; and the scans of JPEG. Nothing is decoded."""

import re
from dataclasses import dataclass

from av.video.stream import VideoStream

LENGTH_PLACES = {"h264": 4, "hevc": 21}
"""Codec -> the byte of its header whose two last bits say how long the length of a unit is (ISO/IEC
14496-15, AVCDecoderConfigurationRecord and HEVCDecoderConfigurationRecord)."""
UNIT_CODECS = frozenset(LENGTH_PLACES)
START = b"\x00\x00\x01"
"""It precedes each part of a picture of MPEG-2, and the part's code follows it."""
FIRST_SLICE = 0x01
LAST_SLICE = 0xAF
MAX_ROWS_PX = 2800
"""Height up to which the code of a slice is its row."""
FORBIDDEN_BIT = 0x80
"""Of a unit's first byte; it is 0 (ITU-T H.264 and H.265, 7.3.1)."""

SCAN = b"\xff\xda"
"""In front of the coded pixels of a JPEG."""
END_OF_JPEG = b"\xff\xd9"
RESERVED_MARK = re.compile(rb"\xff[\x02-\xbf]")
"""A mark that no JPEG has (ITU-T T.81, table B.1); coded pixels escape such bytes."""


@dataclass(frozen=True)
class UnitLengths:
    """How the length of a unit is written before it."""

    num_bytes: int
    """the bytes of a length; 0 where units begin with a mark instead, as in a transport stream"""

    @staticmethod
    def of(stream: VideoStream) -> "UnitLengths":
        """The lengths of a stream with one of UNIT_CODECS."""
        header = stream.codec_context.extradata or b""
        place = LENGTH_PLACES[stream.codec_context.name]
        if len(header) <= place or header[0] != 1:
            return UnitLengths(0)
        return UnitLengths((header[place] & 0b11) + 1)

    def are_broken(self, picture: bytes) -> bool:
        """Whether units of a picture go beyond its end, or do not begin as units do: then something
        else was written over them."""
        place = 0
        while self.num_bytes and place + self.num_bytes < len(picture):
            length = int.from_bytes(picture[place : place + self.num_bytes], "big")
            place += self.num_bytes
            if length and picture[place] & FORBIDDEN_BIT:
                return True
            place += length

        return place > len(picture)


def lacks_slice(picture: bytes) -> bool:
    """Whether a row of blocks between others has no slice in a picture of MPEG-2, each of whose
    rows begins one (ITU-T H.262, 6.1.2.2)."""
    rows = set[int]()
    place = picture.find(START)
    while 0 <= place < len(picture) - 3:
        code = picture[place + 3]
        if FIRST_SLICE <= code <= LAST_SLICE:
            rows.add(code)
        place = picture.find(START, place + 3)

    return bool(rows) and len(rows) < max(rows)


def has_broken_scan(picture: bytes) -> bool:
    """Whether the coded pixels of a JPEG have bytes that they cannot have: what was written over
    them is something else."""
    begin = picture.find(SCAN)
    end = picture.find(END_OF_JPEG, begin)
    if begin < 0:
        return True
    return RESERVED_MARK.search(picture, begin, end if end > 0 else len(picture)) is not None
