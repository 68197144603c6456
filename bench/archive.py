"""What indexing an archive costs by each sampling mode: files like those of archives are made from
real clips, and sampled thoroughly and by key frames, beside a plain reader of one frame a second.
Rows of one file are of one run, one after the other.

PYTHONPATH=. python bench/archive.py --clips FOLDER [--seconds 60] [--rounds 3]

A file's bytes and every measure are of one minute of video. The readers of other packages take part
where these are installed: `decord`, `imagehash` and `vpdq`. `every picture` is what a thorough
sample costs where all pictures are decoded; `times as fast` is against it.
"""

import importlib
import importlib.util
import itertools
import math
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import av
import numpy as np
from av.video.frame import PictureType, VideoFrame
from av.video.stream import VideoStream

from bench.table import parse, show
from hapvr.video.frames import display_frame, encode_jpeg
from hapvr.video.sampler import Wanted
from hapvr.video.sampling import Reading, sample_every_picture, sample_frames
from hapvr.video.settings import SamplingMode

FPS = 30
CLIP_S = 4
"""So much of each clip is taken; then the next one is cut to."""
ENCODED_S = 8
"""So much is encoded; large pictures take minutes."""
MODES: tuple[SamplingMode, ...] = get_args(SamplingMode)


@dataclass(frozen=True)
class ArchiveFile:
    """A kind of file. key_s: seconds between key frames; megabits: a second."""

    name: str
    width_px: int
    height_px: int
    key_s: int
    megabits: float
    encoder: Literal["libx264", "libx265"] = "libx264"
    is_phone: bool = False
    """turned by a quarter, without B-frames, and with gaps of up to a tenth of a second between
    frames"""


FILES = (
    ArchiveFile("1080p, key frame in 2 s", 1920, 1080, 2, 5),
    ArchiveFile("1080p, key frame in 4 s", 1920, 1080, 4, 5),
    ArchiveFile("1080p, key frame in 8 s", 1920, 1080, 8, 5),
    ArchiveFile("1080p, HEVC, key frame in 4 s", 1920, 1080, 4, 3, encoder="libx265"),
    ArchiveFile("4K, key frame in 4 s", 3840, 2160, 4, 16),
    ArchiveFile("phone, 1080p, key frame in 1 s", 1920, 1080, 1, 12, is_phone=True),
)


def shown_frames(clips: Path) -> Iterator[VideoFrame]:
    """Frames of all clips of a folder that are large enough, over and over: FPS a second of each.

    Raises: SystemExit where there is none.
    """
    paths = sorted(path for path in clips.iterdir() if path.suffix in (".mp4", ".webm", ".mkv"))
    large = [path for path in paths if height_of(path) >= 720]
    if not large:
        raise SystemExit(f"{clips} has no clip of 720 rows or more")
    for path in itertools.cycle(large):
        with av.open(str(path)) as container:
            count = CLIP_S * FPS
            yield from itertools.islice(container.decode(video=0), count)


def height_of(path: Path) -> int:
    with av.open(str(path)) as container:
        return container.streams.video[0].height if container.streams.video else 0


def write_file(path: Path, kind: ArchiveFile, clips: Path, seconds: int) -> None:
    """A file of a kind: groups of pictures of `ENCODED_S`, repeated until it is long enough."""
    encoded = path.with_suffix(".part.mp4")
    encoded_s = math.ceil(min(ENCODED_S, seconds) / kind.key_s) * kind.key_s
    encode(encoded, kind, clips, encoded_s)
    with av.open(str(path), "w") as target:
        stream: VideoStream | None = None
        for repeat in range(math.ceil(seconds / encoded_s)):
            with av.open(str(encoded)) as source:
                if stream is None:
                    stream = target.add_stream_from_template(source.streams.video[0])
                for packet in source.demux(video=0):
                    if packet.pts is None or packet.dts is None or packet.time_base is None:
                        continue
                    shift = round(repeat * encoded_s / packet.time_base)
                    packet.pts += shift
                    packet.dts += shift
                    packet.stream = stream
                    target.mux(packet)

    encoded.unlink()


def encode(path: Path, kind: ArchiveFile, clips: Path, seconds: int) -> None:
    """The groups of pictures of a file of a kind, none of which needs another one."""
    rng = np.random.default_rng(0)
    interval = kind.key_s * FPS
    bits = round(kind.megabits * 1e6)
    params = f"keyint={interval}:min-keyint={interval}:scenecut=0:open-gop=0"
    if kind.is_phone:
        params += ":bframes=0"
    options = {"preset": "veryfast", "b": str(bits)}
    options[f"{kind.encoder.removeprefix('lib')}-params"] = params
    unit = Fraction(1, 1000)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(kind.encoder, rate=FPS, options=options)
        stream.width = kind.width_px
        stream.height = kind.height_px
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = unit
        stream.time_base = unit
        if kind.is_phone:
            stream.set_display_rotation(90)
        for number, frame in enumerate(itertools.islice(shown_frames(clips), seconds * FPS)):
            if kind.is_phone and rng.random() < 0.1:
                continue
            picture = frame.reformat(kind.width_px, kind.height_px, "yuv420p")
            picture.pict_type = PictureType.NONE  # else frames stay what they were in the clip
            picture.pts = round(number * 1000 / FPS)
            picture.time_base = unit
            container.mux(stream.encode(picture))

        container.mux(stream.encode())


def sample(path: Path, mode: SamplingMode) -> int:
    """Frames that `hapvr index add` would store."""
    samples = sample_frames(path, fps=1, short_side_px=256, keep=encode_jpeg, mode=mode)
    return len(samples.frames)


def sample_every(path: Path) -> int:
    """As `sample` does thoroughly, of every picture decoded."""
    wanted = Wanted(1, 256, encode_jpeg)
    return len(sample_every_picture(path, wanted, Reading()).frames)


def read_with_decord(path: Path, decord: Any) -> int:
    """Frames that a user of decord takes, one a second, with the short side of ours."""
    reader = decord.VideoReader(str(path), num_threads=1)
    numbers = range(0, len(reader), round(reader.get_avg_fps()))
    for number in numbers:
        encode_jpeg(display_frame(reader[number].asnumpy(), short_side_px=256))
    return len(numbers)


def read_plainly(path: Path, use: Callable[[VideoFrame], object] = VideoFrame.to_ndarray) -> int:
    """Frames that a reader of one frame a second takes: it decodes all, with the file's usual
    threads off, and keeps the first of each second."""
    count = 0
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        for frame in container.decode(stream):
            if frame.time is not None and frame.time >= count:
                use(frame)
                count += 1

    return count


def hash_frame(frame: VideoFrame) -> object:
    """As users of ImageHash do."""
    imagehash: Any = importlib.import_module("imagehash")
    return imagehash.phash(frame.to_image())  # type: ignore[no-untyped-call]


def hash_with_vpdq(path: Path) -> int:
    """As users of vPDQ do."""
    vpdq: Any = importlib.import_module("vpdq")
    return len(vpdq.computeHash(str(path), seconds_per_hash=1))


def readers() -> dict[str, Callable[[Path], int]]:
    """All readers that are installed, by name."""
    by_name: dict[str, Callable[[Path], int]] = {mode: partial(sample, mode=mode) for mode in MODES}
    by_name["every picture"] = sample_every
    by_name["plain reader"] = read_plainly
    if importlib.util.find_spec("decord"):
        decord = importlib.import_module("decord")
        by_name["decord"] = partial(read_with_decord, decord=decord)

    if importlib.util.find_spec("imagehash"):
        by_name["ImageHash"] = partial(read_plainly, use=hash_frame)
    if importlib.util.find_spec("vpdq"):
        by_name["vPDQ"] = hash_with_vpdq
    return by_name


def cost(reader: str, path: Path) -> tuple[float, float, int]:
    """Processor seconds, MiB of memory at most, and frames of one reading; runs in a process of its
    own."""
    work = readers()[reader]
    start_s = time.process_time()
    frames = work(path)
    spent_s = time.process_time() - start_s
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return spent_s, peak_kib / 1024, frames


def measure(kind: ArchiveFile, path: Path, *, seconds: int, rounds: int) -> list[dict[str, Any]]:
    """A row per reader. Readers take turns, so that other load meets all of them alike."""
    names = list(readers())
    costs: dict[str, list[tuple[float, float, int]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                costs[name].append(pool.apply(cost, (name, path)))

    rows = []
    for name in names:
        ratios = [
            slow[0] / fast[0]
            for slow, fast in zip(costs["every picture"], costs[name], strict=True)
        ]
        rows.append(
            {
                "file": kind.name,
                "MB/min": round(path.stat().st_size * 60 / seconds / 1e6),
                "reader": name,
                "CPU s/min": statistics.median(each[0] for each in costs[name]) * 60 / seconds,
                "times as fast": statistics.median(ratios),
                "MiB": round(max(each[1] for each in costs[name])),
                "frames": costs[name][0][2],
            }
        )

    return rows


def main() -> None:
    """Measures and prints a table per file."""
    options = parse(__doc__, clips=Path(), seconds=60, rounds=3, files=len(FILES))
    with tempfile.TemporaryDirectory() as folder:
        for number, kind in enumerate(FILES[: options.files]):
            path = Path(folder) / f"{number}.mp4"
            write_file(path, kind, options.clips, options.seconds)
            show(measure(kind, path, seconds=options.seconds, rounds=options.rounds))
            path.unlink()


if __name__ == "__main__":
    main()
