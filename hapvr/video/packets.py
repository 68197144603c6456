"""What is in a file besides its pictures: how it is opened, which streams and packets it has, and
whether it is whole. Nothing here decodes."""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition, Stream

from hapvr.errors import VideoError

# Containers of recordings. Playlists and scripts (hls, dash, concat, sdp), which name other files
# or servers to read, and still pictures are missing on purpose. Formats of sound are here so that
# such files are not taken for damaged ones.
_FORMATS = (
    "3gp,aac,ac3,apng,asf,avi,dv,f4v,flac,flv,gif,gxf,h261,h263,h264,hevc,ivf,m4v,matroska,mjpeg,mov,mp3,mpeg,mpegts,"
    "mpegvideo,mxf,nut,obu,ogg,rm,vc1,wav,webm,wtv,yuv4mpegpipe"
)
# Decoders for the files that cameras, phones, editors and sites make. FFmpeg has 500 more, each a
# way in for a hostile file.
DECODERS = frozenset(
    {
        "apng",
        "dnxhd",
        "dvvideo",
        "flv",
        "gif",
        "h263",
        "h264",
        "hevc",
        "libdav1d",
        "mjpeg",
        "mpeg1video",
        "mpeg2video",
        "mpeg4",
        "msmpeg4",
        "msmpeg4v1",
        "msmpeg4v2",
        "png",
        "prores",
        "rawvideo",
        "theora",
        "vc1",
        "vp8",
        "vp9",
        "wmv1",
        "wmv2",
        "wmv3",
    }
)
ARCHIVE_DECODERS = frozenset({"cfhd", "ffv1", "jpeg2000", "rv10", "rv20", "rv30", "rv40", "v210"})
"""Decoders of archives and of old downloads, which `sampling.archive_codecs` adds."""
_PARTS = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.dependent
"""Streams of this kind are the cover picture of a song, or a tile of a phone's photo."""
# `open_container` adds the decoders with which FFmpeg may look into streams when it opens a file
_OPEN_OPTIONS = {
    "format_whitelist": _FORMATS,
    "protocol_whitelist": "file",
}
_WITHOUT_EDITS = {"ignore_editlist": "1"}

LONGEST_GAP_S = 86_400.0
"""A longer gap between two pictures is an error of the clock, unless sound fills it."""
LONG_ENOUGH = 0.5
"""The least length of the film, as a part of the longest stream's: a menu or trailer is shorter."""
MAX_REORDERED = 16
"""The most pictures that a codec stores behind a later one."""
HEAD_BYTES = 1 << 14
PADDING_BYTES = 64
"""By how many bytes a file may be shorter than it declares: writers may count padding."""
UNKNOWN_BYTES = 1 << 60
"""A length that is not known counts as longer than any file."""
MEDIA_BOXES = frozenset({b"mdat", b"moof", b"moov"})
"""Of MP4; what follows them may be anything that a program has added."""
MAX_BOXES = 1_000_000
"""The most boxes that are read; a film in fragments has at most two per second."""
END_BYTES = 1 << 16
"""How long an index behind the last packet may be; or a hundredth of the file, if that is more."""


def open_container(path: Path, decoders: frozenset[str] = DECODERS) -> InputContainer:
    """The file, opened by its content. decoders: with which FFmpeg may look into it. Raises
    FFmpegError, ValueError."""
    options = _OPEN_OPTIONS | {"codec_whitelist": ",".join(sorted(decoders))}
    container = av.open(f"file:{path}", metadata_errors="replace", options=options)
    if not _hides_all(container):
        return container
    container.close()
    return av.open(f"file:{path}", metadata_errors="replace", options=options | _WITHOUT_EDITS)


def _hides_all(container: InputContainer) -> bool:
    """Whether an edit list hides all pictures of an MP4 file, as one that has no length or begins
    behind the end of them: a writer's error, as nobody keeps a film to show nothing."""
    if "mp4" not in container.format.name:
        return False
    streams = [stream for stream in container.streams.video if stream.frames > 1]
    return any(all(entry.is_discard for entry in stream.index_entries) for stream in streams)


def text_of(error: Exception) -> str:
    """What an error of FFmpeg or of the system says."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@dataclass
class PacketTimes:
    """The packets of a file, in the file's order."""

    times_s: array[float] = field(default_factory=lambda: array("d"))
    """when each is displayed, or else decoded"""
    of_picture: array[int] = field(default_factory=lambda: array("b"))
    """whether each belongs to the video stream"""
    end_bytes: int = 0
    """where the last one ends"""
    sound_has_times: bool = True
    """False for AVI, which stores no times of sound, so that its sound never pauses"""

    @property
    def num_pictures(self) -> int:
        return sum(self.of_picture)

    @property
    def last_picture_s(self) -> float | None:
        """The latest time of a picture; None for a file without pictures."""
        pictures_s = np.asarray(self.times_s)[np.asarray(self.of_picture, bool)]
        return float(pictures_s.max()) if len(pictures_s) else None

    @property
    def last_s(self) -> float:
        """The latest time of any stream."""
        return max(self.times_s, default=0.0)

    def has_sound(self, before_s: float, after_s: float) -> bool:
        """Whether there is sound in at least half of the minutes between two times."""
        sound_s = np.asarray(self.times_s)[~np.asarray(self.of_picture, bool)]
        inside_s = sound_s[(sound_s > before_s) & (sound_s < after_s)]
        minutes = np.unique((inside_s - before_s) // 60)
        return len(minutes) >= (after_s - before_s) / 60 / 2

    def is_broken(self, before_s: float, after_s: float) -> bool:
        """Whether the step of the video's clock from one time to a later one is an error of the
        clock.

        Sound that fills the gap shows that the clock is right. The clock is wrong if, behind the
        gap, pictures come back to times within it, or sound runs on there, or if the gap is longer
        than any pause of a recording. Everything else is a pause, as in cameras that record only
        what moves.
        """
        if self.has_sound(before_s, after_s):
            return False
        if after_s - before_s > LONGEST_GAP_S:
            return True
        times_s = np.asarray(self.times_s)
        of_picture = np.asarray(self.of_picture, bool)
        middle_s = (before_s + after_s) / 2
        behind = np.flatnonzero(of_picture & (times_s >= middle_s))
        if not len(behind):
            return False

        rest_s = times_s[behind[0] :]
        rest_of_picture = of_picture[behind[0] :]
        num_back = int((rest_of_picture & (rest_s < middle_s)).sum())
        comes_back = num_back > MAX_REORDERED or 2 * num_back >= rest_of_picture.sum()
        is_in_gap = (rest_s > before_s + 1) & (rest_s < middle_s)
        runs_on = self.sound_has_times and bool((~rest_of_picture & is_in_gap).any())
        return bool(comes_back) or runs_on


def scan_packets(path: Path, *, stream_index: int) -> PacketTimes:
    """The packets of a file as far as they can be read. stream_index: of the video stream."""
    packets = PacketTimes()
    with (
        contextlib.suppress(av.error.FFmpegError, ValueError),
        open_container(path) as container,
    ):
        packets.sound_has_times = container.format.name != "avi"
        for packet in _packets(container):
            stamp = packet.dts if packet.pts is None else packet.pts
            if stamp is None or packet.time_base is None:
                continue
            if packet.stream.type not in ("video", "audio"):
                continue
            packets.times_s.append(float(stamp * packet.time_base))
            packets.of_picture.append(packet.stream_index == stream_index)
            packets.end_bytes = max(packets.end_bytes, (packet.pos or 0) + packet.size)

    return packets


def _packets(container: InputContainer) -> Iterator[Packet[Stream]]:
    """All packets of a file, up to the first that cannot be read."""
    packets = container.demux()
    while True:
        try:
            yield next(packets)
        except StopIteration:
            return
        except IndexError:  # PyAV does not know streams that begin later: skip their packet
            packets = container.demux()


def films(path: Path, container: InputContainer) -> list[int]:
    """The indexes of the streams that may be the video, the likeliest first: films before still
    pictures, such as covers that are not marked as one; then long ones before short ones; then
    large ones before small ones."""
    streams = [
        stream
        for stream in container.streams.video
        if stream.codec_context is not None and not stream.disposition & _PARTS
    ]
    if not streams:
        kinds = ", ".join(sorted({stream.type for stream in container.streams}))
        if not kinds:
            raise VideoError(
                "not_video",
                f"video: {path.name} has neither pictures nor sound; it may be damaged: fetch "
                "it again",
            )

        raise VideoError(
            "no_video_stream",
            f"video: {path.name} has {kinds}, but no moving picture; save a photo as JPEG",
        )

    streams.sort(key=lambda stream: -stream.codec_context.width * stream.codec_context.height)
    indexes = [stream.index for stream in streams]
    if len(indexes) == 1:
        return indexes
    moving = _moving(path, set(indexes))
    lengths_s = {index: _declared_s(container, index) for index in indexes}
    enough_s = LONG_ENOUGH * max(lengths_s[index] for index in moving or indexes)

    def rank(index: int) -> tuple[bool, bool]:
        return index not in moving, lengths_s[index] < enough_s

    return sorted(indexes, key=rank)


def _declared_s(container: InputContainer, index: int) -> float:
    """How long a stream is, as the file says; the length of the file if it does not say."""
    stream = container.streams[index]
    track_s = tag_s(stream.metadata.get("DURATION", ""))
    if track_s is not None:
        return track_s
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / av.time_base


def tag_s(text: str) -> float | None:
    """The seconds of a tag as Matroska has it, 00:00:10.040000000; None for another text."""
    match = re.fullmatch(r"(\d+):(\d+):(\d+(?:\.\d*)?)", text)
    if match is None:
        return None
    hours, minutes, seconds = map(float, match.groups())
    return 3600 * hours + 60 * minutes + seconds


def _moving(path: Path, indexes: set[int]) -> set[int]:
    """Those of several streams that have more than one packet; the file is read until that is
    known of each, or it ends."""
    seen: set[int] = set()
    moving: set[int] = set()
    with (
        contextlib.suppress(av.error.FFmpegError, ValueError),
        open_container(path) as container,
    ):
        for packet in _packets(container):
            if packet.size == 0 or packet.stream_index not in indexes:
                continue
            if packet.stream_index in seen:
                moving.add(packet.stream_index)
            seen.add(packet.stream_index)
            if moving == indexes:
                break

    return moving


def is_whole(path: Path, *, format_name: str, num_pictures: int, packets: PacketTimes) -> bool:
    """Whether the file's own structure shows that its end is not missing; False if nothing shows
    it. num_pictures: as the file declares, 0 if it does not."""
    if num_pictures and packets.num_pictures >= num_pictures:
        return True
    if format_name == "flv":
        return _is_whole_flv(path)
    declared_bytes = declared_bytes_of(path, format_name=format_name)
    file_bytes = path.stat().st_size
    if declared_bytes is None or declared_bytes > file_bytes:
        return False
    # AVI has a chunk and an entry of its index for each picture, also for those left out
    index_bytes = max(END_BYTES, file_bytes // 100) + 32 * num_pictures
    return file_bytes - packets.end_bytes <= index_bytes


def is_cut(path: Path, *, format_name: str) -> bool:
    """Whether the file has fewer bytes than it declares."""
    declared_bytes = declared_bytes_of(path, format_name=format_name) or 0
    return path.stat().st_size + PADDING_BYTES < declared_bytes < UNKNOWN_BYTES


def declared_bytes_of(path: Path, *, format_name: str) -> int | None:
    """How long the file is, as its own head says; None where it does not."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if "matroska" in format_name:
        return _matroska_bytes(head)
    if format_name == "avi" and head[:4] == b"RIFF":
        # a recorder writes 0 or the largest number while it does not know
        length = int.from_bytes(head[4:8], "little")
        return 8 + length if 0 < length < 2**32 - 16 else UNKNOWN_BYTES
    if format_name == "asf":
        return _asf_bytes(head)
    if "mp4" in format_name:
        return _cut_mp4_bytes(path)
    return None


def _cut_mp4_bytes(path: Path) -> int | None:
    """Where the media of an MP4 file that was cut within them would end; None for a whole file."""
    file_bytes = path.stat().st_size
    place = 0
    with path.open("rb") as file:
        for _ in range(MAX_BOXES):
            file.seek(place)
            head = file.read(16)
            num_bytes = int.from_bytes(head[:4])
            kind = head[4:8]
            if num_bytes == 1:
                num_bytes = int.from_bytes(head[8:16])
            place += num_bytes
            if place > file_bytes and kind in MEDIA_BOXES:
                return place
            # 0 is a box up to the file's end
            if num_bytes < 8 or place >= file_bytes:
                return None

    return None


def _matroska_bytes(head: bytes) -> int | None:
    """How long a file with this head is, as its segment says; None where it does not."""
    if head[:4] != bytes.fromhex("1a45dfa3"):
        return None
    place, size = _ebml_size(head, 4)
    place += size
    if head[place : place + 4] != bytes.fromhex("18538067"):
        return None
    place, size = _ebml_size(head, place + 4)
    return place + size


def _asf_bytes(head: bytes) -> int | None:
    """How long a file with this head is, as its File Properties say (ASF, section 3.2)."""
    place = head.find(bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365"))
    if place < 0 or len(head) < place + 48:
        return None
    return int.from_bytes(head[place + 40 : place + 48], "little")


def _ebml_size(data: bytes, place: int) -> tuple[int, int]:
    """The place behind a length of Matroska, and the length (RFC 8794, section 4); a length that is
    not known is longer than any file."""
    first = data[place] if place < len(data) else 0
    num_bytes = 9 - first.bit_length()
    value = int.from_bytes(data[place : place + num_bytes]) & ((1 << 7 * num_bytes) - 1)
    unknown = num_bytes > 8 or value == (1 << 7 * num_bytes) - 1
    return place + num_bytes, UNKNOWN_BYTES if unknown else value


def _is_whole_flv(path: Path) -> bool:
    """Whether the last four bytes are the length of a tag that begins so far before them."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(end - 4, 0))
        length = int.from_bytes(file.read(4))
        if not 11 <= length <= end - 13:
            return False
        file.seek(end - 4 - length)
        tag = file.read(4)

    return tag[0] in (8, 9, 18) and int.from_bytes(tag[1:]) == length - 11
