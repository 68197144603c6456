"""What a file really holds, counted from its packets and a few of its pictures: headers may lie.

It decides which of several copies is kept, so it is measured for copies alone.
"""

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray
from pydantic import TypeAdapter

from hapvr.errors import VideoError
from hapvr.video.cadence import RUN_PICTURES, is_woven, share_of_new
from hapvr.video.decode import is_webp_film, open_video, probe_video
from hapvr.video.detail import blockiness_of, detail_of, fineness_of
from hapvr.video.facts import FileFacts
from hapvr.video.heartbeat import FileBeats
from hapvr.video.packets import ARCHIVE_DECODERS, DECODERS, films, is_cut, open_container
from hapvr.video.pool import in_workers
from hapvr.video.probe import check_file, check_size
from hapvr.video.sandbox import call_confined, report
from hapvr.video.settings import SamplingConfig
from hapvr.video.units import MAX_ROWS_PX, UNIT_CODECS, UnitLengths, has_broken_scan, lacks_slice

DETAIL_PLACES = (0.15, 0.35, 0.55, 0.75)
"""Parts of a video's length at which its detail is measured."""
MAX_SKIPPED_PX = 500_000_000
"""How much is decoded at most from a key frame to such a place: 240 pictures of 1080p. Copies whose
pictures are of the same moments can be compared better."""
MIN_SOUND_BYTES_S = 600
"""A track with fewer bytes a second is silence: the codecs of films need 2,000 for speech."""
LEAST_HEARD = 0.05
"""Part of a track that has other bytes than those just before; with less it is silence."""
HOLE_BYTES = 1024
"""So many zero bytes in a row are a hole, as in an unfinished download: H.264 and HEVC escape
zeros."""
CUT = "the file ends at a part of its bytes"
LONGEST_SOUND_S = 1.0
"""A longer step from one packet of sound to the next is a pause."""


_ANSWER = TypeAdapter(FileFacts | str)
"""What a confined process says of a file: facts, or why there are none."""


def measure_files(
    files: Iterable[Path],
    *,
    config: SamplingConfig,
    doing: Callable[[str], None] | None = None,
) -> Iterator[tuple[Path, FileFacts | VideoError]]:
    """The facts of each file, in order, measured in worker processes as `sample_videos` does.

    doing: is told which file is measured, and how far it is
    """
    measure = functools.partial(_measure_confined, archive_codecs=config.archive_codecs)
    return in_workers(measure, files, config=config, doing=doing)


def _measure_confined(path: Path, *, archive_codecs: bool) -> FileFacts:
    check_file(path)
    answer = call_confined(
        functools.partial(_answer, path, archive_codecs),
        readable=path,
        alive=FileBeats(path.name, "measuring"),
    )
    facts = _ANSWER.validate_json(answer)
    if isinstance(facts, str):
        raise VideoError("decode_error", facts)
    return facts


def _answer(path: Path, archive_codecs: bool) -> bytes:
    """Runs in the confined process."""
    try:
        facts = measure_file(path, archive_codecs=archive_codecs, progress=report)
        return _ANSWER.dump_json(facts)
    except (VideoError, av.error.FFmpegError) as error:
        return _ANSWER.dump_json(str(error).encode(errors="backslashreplace").decode())


def measure_file(
    path: Path,
    *,
    archive_codecs: bool = False,
    progress: Callable[[float], None] = lambda seconds: None,
) -> FileFacts:
    """The facts of one file.

    archive_codecs: whether those of ARCHIVE_DECODERS are decoded, too
    progress: is told the time of pictures

    Raises: VideoError as `open_video` does, and FFmpegError.
    """
    if is_webp_film(path):
        return _measure_webp(path, progress)
    decoders = DECODERS | ARCHIVE_DECODERS if archive_codecs else DECODERS
    declared_s = probe_video(path, archive_codecs=archive_codecs).duration_s
    with open_container(path, decoders) as container:
        stream = _stream(path, container)
        count = _count_packets(container, stream, progress)
        expected = stream.frames
        has_all_bytes = not is_cut(path, format_name=container.format.name)

    length_s = count.length_s()
    runs = _runs_of_pictures(path, decoders, count.first_s(), length_s)
    return FileFacts(
        video_bytes=count.video_bytes,
        length_s=length_s,
        declared_s=declared_s,
        fps=count.fps(),
        sound=count.has_sound(length_s),
        damage=count.damage(expected, declared_s) or ("" if has_all_bytes else CUT),
        pause_s=max(count.steps_s(), default=0.0),
        detail=_median_of([detail_of(run[0]) for run in runs]),
        new_share=share_of_new(runs),
        woven=is_woven(runs),
        fineness=_median_value([fineness_of(run[0]) for run in runs]),
        blockiness=_median_value([blockiness_of(run[0]) for run in runs]),
        num_pictures=count.num_pictures,
    )


def _measure_webp(path: Path, progress: Callable[[float], None]) -> FileFacts:
    """The facts of a WebP film, which has no packets: its frames are decoded."""
    lasts_s = list[float]()
    details = list[tuple[float, ...]]()
    with open_video(path) as (_, pictures):
        places = {int(part * pictures.num_declared) for part in DETAIL_PLACES}
        for number, picture in enumerate(pictures):
            progress(picture.time_s)
            lasts_s.append(picture.lasts_s)
            if number in places:
                details.append(detail_of(_grey(picture.frame)))

    return FileFacts(
        video_bytes=path.stat().st_size,
        length_s=sum(lasts_s),
        declared_s=None,
        fps=1 / median(lasts_s),
        sound=False,
        damage=CUT if pictures.ends_early else "",
        pause_s=max(lasts_s[:-1], default=0.0),
        detail=_median_of(details),
        num_pictures=len(lasts_s),
    )


def _stream(path: Path, container: InputContainer) -> VideoStream:
    """The stream that `open_video` reads. Raises VideoError as it does."""
    stream = container.streams[films(path, container)[0]]
    assert isinstance(stream, VideoStream)
    return stream


def _restrict_decoder(stream: VideoStream, decoders: frozenset[str]) -> None:
    """Decode with one thread, and with no other decoder than the stream's, which must be one of
    those that are allowed. Raises VideoError unsupported_codec."""
    name = stream.codec_context.name
    if name not in decoders:
        raise VideoError("unsupported_codec", f"video: the codec {name} is not decoded")
    stream.thread_type = "NONE"
    stream.codec_context.options = {"codec_whitelist": name}


def _recent() -> deque[bytes]:
    """A constant rate that is no whole number of bytes a packet is kept by two or three lengths."""
    return deque(maxlen=8)


@dataclass
class _PacketCount:
    """What is counted while packets are read. damaged: numbers of pictures. times_s: of pictures,
    in order of decoding. last_end_s: when the last one is over, as far as packets say how long they
    are shown. sound_bytes, sound_s, silence_s: by stream; sound_recent: its newest packets,
    sound_last_s: when the last of these begins."""

    video_bytes: int = 0
    num_pictures: int = 0
    damaged: set[int] = field(default_factory=set)
    problem: str = ""
    times_s: list[float] = field(default_factory=list)
    last_end_s: float = 0.0
    sound_bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    sound_recent: dict[int, deque[bytes]] = field(default_factory=lambda: defaultdict(_recent))
    sound_last_s: dict[int, float] = field(default_factory=dict)
    sound_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    silence_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def first_s(self) -> float:
        return min(self.times_s, default=0.0)

    def steps_s(self) -> list[float]:
        """The times from each picture to the next."""
        return [after - before for before, after in pairwise(sorted(set(self.times_s)))]

    def interval_s(self) -> float:
        """The usual time between two pictures; 0 where it is not known."""
        steps_s = self.steps_s()
        return median(steps_s) if steps_s else 0.0

    def length_s(self) -> float:
        if not self.times_s:
            return 0.0
        end_s = max(max(self.times_s) + self.interval_s(), self.last_end_s)
        return end_s - self.first_s()

    def fps(self) -> float:
        interval_s = self.interval_s()
        return 1 / interval_s if interval_s else 0.0

    def has_sound(self, length_s: float) -> bool:
        for stream, num_bytes in self.sound_bytes.items():
            sound_s = self.sound_s[stream]
            heard_s = sound_s - self.silence_s[stream]
            is_heard = num_bytes >= MIN_SOUND_BYTES_S * sound_s and heard_s >= LEAST_HEARD * sound_s
            if is_heard and sound_s >= length_s / 2:
                return True

        return False

    def damage(self, expected: int, declared_s: float | None) -> str:
        """expected: pictures that the index of the file has, 0 where it has none; a file that shows
        only a part of them on purpose declares as much."""
        ends_early = self.length_s() + 1.5 * self.interval_s() < (declared_s or 0.0)
        if self.num_pictures < expected and ends_early:
            return f"it has {self.num_pictures} of the {expected} pictures of its index"
        # a recording is cut anywhere, also within a picture
        ends = {0, 1, self.num_pictures - 1}
        if inner := self.damaged - ends:
            return f"{len(inner)} of its {self.num_pictures} pictures are damaged"
        return self.problem


def _count_packets(
    container: InputContainer, stream: VideoStream, progress: Callable[[float], None]
) -> _PacketCount:
    """Read all packets, and decode none.

    progress: is told the time of pictures
    """
    count = _PacketCount()
    is_broken = _check_of(stream)
    interval_s = float(1 / stream.average_rate) if stream.average_rate else 0.04
    packets = container.demux()
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            return count
        except IndexError:  # PyAV does not know streams that begin later
            packets = container.demux()
            continue
        except av.error.FFmpegError as error:
            count.problem = f"its data ends early ({error.strerror})"
            return count

        if (
            not packet.size or packet.is_discard
        ):  # a cut by an edit list leaves pictures that are hidden
            continue

        if packet.stream is stream:
            _count_picture(count, packet, interval_s, is_broken)
            progress(count.times_s[-1])
        elif packet.stream.type == "audio":
            _count_sound(count, packet)


def _count_sound(count: _PacketCount, packet: "Packet[Any]") -> None:
    """A packet of sound. Matroska need not say how long it is; then the step from the one before it
    counts, unless that is a pause."""
    number = packet.stream_index
    data = bytes(packet)
    # silence may fill as many bytes as sound, but always with the same ones
    is_silence = data in count.sound_recent[number] or len(set(data)) == 1
    count.sound_recent[number].append(data)
    count.sound_bytes[number] += packet.size
    lasts_s = float((packet.duration or 0) * (packet.time_base or 0))
    if packet.pts is not None and packet.time_base is not None:
        begins_s = float(packet.pts * packet.time_base)
        step_s = begins_s - count.sound_last_s.get(number, begins_s)
        count.sound_last_s[number] = begins_s
        if not lasts_s and 0 < step_s <= LONGEST_SOUND_S:
            lasts_s = step_s

    count.sound_s[number] += lasts_s
    if is_silence:
        count.silence_s[number] += lasts_s


def _check_of(stream: VideoStream) -> Callable[[bytes], bool] | None:
    """What tells whether a picture is surely damaged; None for codecs in which nothing does."""
    codec = stream.codec_context.name
    if codec in UNIT_CODECS:
        units = UnitLengths.of(stream)
        return lambda picture: bytes(HOLE_BYTES) in picture or units.are_broken(picture)
    # higher pictures count their rows in another way
    if codec == "mpeg2video" and stream.codec_context.height <= MAX_ROWS_PX:
        return lacks_slice
    return has_broken_scan if codec == "mjpeg" else None


def _count_picture(
    count: _PacketCount,
    packet: "Packet[Any]",
    interval_s: float,
    is_broken: Callable[[bytes], bool] | None,
) -> None:
    """interval_s: between pictures that have no time; is_broken: see `_check_of`"""
    if packet.is_corrupt or (is_broken is not None and is_broken(bytes(packet))):
        count.damaged.add(count.num_pictures)
    count.num_pictures += 1
    count.video_bytes += packet.size
    time = packet.pts if packet.pts is not None else packet.dts
    if time is None or packet.time_base is None:
        count.times_s.append(len(count.times_s) * interval_s)
        return

    count.times_s.append(float(time * packet.time_base))
    end_s = float((time + (packet.duration or 0)) * packet.time_base)
    count.last_end_s = max(count.last_end_s, end_s)


def _runs_of_pictures(
    path: Path, decoders: frozenset[str], first_s: float, length_s: float
) -> list[list[NDArray[np.uint8]]]:
    """RUN_PICTURES grey pictures in a row, or fewer, from each of DETAIL_PLACES where some can be
    decoded."""
    runs = list[list[NDArray[np.uint8]]]()
    for part in DETAIL_PLACES:
        run = list[NDArray[np.uint8]]()
        with suppress(av.error.FFmpegError), open_container(path, decoders) as container:
            stream = _stream(path, container)
            _restrict_decoder(stream, decoders)
            for frame in _pictures_from(path, container, stream, first_s + part * length_s):
                run.append(_grey(frame))
                if len(run) == RUN_PICTURES:
                    break

        if run:
            runs.append(run)

    return runs


def _pictures_from(
    path: Path, container: InputContainer, stream: VideoStream, begin_s: float
) -> Iterator[VideoFrame]:
    """The pictures from a time on, or from an earlier one where that is far behind a key frame."""
    container.seek(round(begin_s * av.time_base))
    skipped_px = 0
    for frame in container.decode(stream):
        if not isinstance(frame, VideoFrame):
            continue
        check_size(path, frame.width, frame.height)
        is_early = frame.time is not None and frame.time < begin_s
        if is_early and skipped_px < MAX_SKIPPED_PX:
            skipped_px += frame.width * frame.height
        else:
            yield frame


def _grey(frame: VideoFrame) -> NDArray[np.uint8]:
    return frame.to_ndarray(format="gray").astype(np.uint8, copy=False)


def _median_value(values: Sequence[float]) -> float:
    """0 for none."""
    return float(np.median(values)) if values else 0.0


def _median_of(details: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """At each scale; () where none was measured."""
    measured = [values for values in details if values]
    if not measured:
        return ()
    return tuple(float(value) for value in np.median(measured, axis=0))
