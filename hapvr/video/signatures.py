"""Whether a file is a film by its first bytes, whatever its name. Nothing is decoded."""

from pathlib import Path

from hapvr.files import open_regular

HEAD_BYTES = 1024
EBML = b"\x1a\x45\xdf\xa3"
FLV = b"FLV\x01"
ASF = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
MPEG_PROGRAM = b"\x00\x00\x01\xba"
MPEG_VIDEO = b"\x00\x00\x01\xb3"
MXF = bytes.fromhex("060e2b34020501010d0102")
BEGINNINGS = (EBML, FLV, ASF, MPEG_PROGRAM, MPEG_VIDEO, MXF)
QUICKTIME_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"wide"})
OTHER_BRANDS = (
    b"M4A",
    b"M4B",
    b"M4P",
    b"F4A",
    b"F4B",
    b"avif",
    b"crx",
    b"hei",
    b"hev",
    b"mif",
    b"msf",
)
"""The beginnings of the brands of sound and of pictures, in a file of boxes."""
TRANSPORT_PACKETS = ((0, 188), (4, 192))
"""Where the first sync byte of a transport stream is, and the distance to the next ones."""
TRANSPORT_MARK = 0x47


def is_film(path: Path) -> bool:
    """Whether a file begins as films do; False for a file that cannot be read."""
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES)
    except (OSError, ValueError):
        return False

    if head.startswith(BEGINNINGS) or _is_transport_stream(head):
        return True
    if head[4:8] in QUICKTIME_BOXES:
        return head[4:8] != b"ftyp" or not head[8:12].startswith(OTHER_BRANDS)
    is_avi = head[:4] == b"RIFF" and head[8:12] == b"AVI "
    is_theora = head[:4] == b"OggS" and b"theora" in head[:64]
    return is_avi or is_theora


def _is_transport_stream(head: bytes) -> bool:
    for first, step in TRANSPORT_PACKETS:
        marks = head[first::step]
        if len(marks) > 2 and all(mark == TRANSPORT_MARK for mark in marks):
            return True

    return False
