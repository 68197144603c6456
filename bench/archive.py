"""The cost of indexing an archive in each sampling mode. Files like those of archives are made from
real clips, and sampled thoroughly and by key frames, beside a plain reader of one frame per second.
The rows of a file come from one run, one after the other.

PYTHONPATH=. python bench/archive.py --clips FOLDER [--seconds 60] [--rounds 3]
PYTHONPATH=. python bench/archive.py --clips FOLDER --readers thorough key_frames "add thorough"
PYTHONPATH=. python bench/archive.py --folder FOLDER

A file's bytes and every measure are per minute of video. The readers of other packages take part if
these are installed: `decord`, `imagehash` and `vpdq`. `every picture` is the cost of a thorough
sample that decodes all pictures; `times as fast` is against the slowest reader. `add thorough` and
`add key_frames` are the whole of `hapvr index add`, less its cost for the first seconds of the
file, so without its start. `MiB` is the most that `index add` and its processes held at one time,
or by how much another reader exceeded what it held before. --folder: measure `hapvr index add` of
this folder instead.
"""

import importlib
import importlib.util
import itertools
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import av
import numpy as np
import psutil
from av.video.frame import PictureType, VideoFrame
from av.video.stream import VideoStream

from bench.table import parse, show
from hapvr.collection import add_folders
from hapvr.video.frames import display_frame, encode_jpeg
from hapvr.video.sampler import Wanted
from hapvr.video.sampling import Reading, sample_every_picture, sample_frames
from hapvr.video.settings import SamplingMode

FPS = 30
CLIP_S = 4
"""How many seconds of each clip are taken before cutting to the next."""
ENCODED_S = 8
"""How many seconds are encoded; large pictures take minutes."""
MODES: tuple[SamplingMode, ...] = get_args(SamplingMode)
INDEXED_S = 4
"""The cost of `index add` for so many seconds of a file counts as the cost of its start."""
ADD = "add "
"""Precedes the mode in the name of a reader that is `hapvr index add`."""
LOOK_EVERY_S = 0.1
"""How often the memory of a reader is looked at."""


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
    """Frames of all clips of a folder that are large enough, over and over, at FPS per second.

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
            # otherwise frames would keep their type from the clip
            picture.pict_type = PictureType.NONE
            picture.pts = round(number * 1000 / FPS)
            picture.time_base = unit
            container.mux(stream.encode(picture))

        container.mux(stream.encode())


def sample(path: Path, mode: SamplingMode) -> int:
    """Frames that `hapvr index add` would store."""
    samples = sample_frames(path, fps=1, short_side_px=256, keep=encode_jpeg, mode=mode)
    return len(samples.frames)


def sample_every(path: Path) -> int:
    """As `sample` thoroughly, but decoding every picture."""
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


@dataclass(frozen=True)
class Cost:
    """The cost of one reading, with all of its processes."""

    cpu_s: float
    peak_mib: float
    """at one time, pages that processes share counted once"""
    frames: int = 0


def read_in_process(reader: str, path: Path) -> Cost:
    """One reading, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (worker,) = multiprocessing.active_children()
        pool.apply(load_readers)
        before_s = cpu_seconds(worker.pid)
        with PeakMemory(worker.pid) as memory:
            frames = pool.apply(read, (reader, path))
        held_mib = memory.peak_mib - memory.first_mib
        return Cost(cpu_seconds(worker.pid) - before_s, held_mib, frames)


def load_readers() -> None:
    """Import what readers need, so that it is no part of a reading."""
    readers()


def read(reader: str, path: Path) -> int:
    """Frames that a reader takes of a file."""
    return readers()[reader](path)


def cpu_seconds(pid: int | None) -> float:
    """Of a process, and of those of its children that have ended."""
    return float(sum(psutil.Process(pid).cpu_times()[:4]))


class PeakMemory:
    """The most memory that a process and its descendants hold at one time while the block runs.
    The kernel's own figure of a process begins with what its parent held."""

    def __init__(self, pid: int | None) -> None:
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.first_mib = 0.0
        self.peak_mib = 0.0

    def __enter__(self) -> "PeakMemory":
        self.first_mib = self.peak_mib = self._held_mib()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self.peak_mib = max(self.peak_mib, self._held_mib())

    def _held_mib(self) -> float:
        num_bytes = 0
        with suppress(psutil.Error):
            for process in (self._process, *self._process.children(recursive=True)):
                with suppress(psutil.Error):  # it has just ended
                    num_bytes += process.memory_full_info().pss
        return num_bytes / 2**20


def index_folder(folder: Path, mode: SamplingMode) -> Cost:
    """`hapvr index add` of a folder, in a new collection."""
    with tempfile.TemporaryDirectory() as parent:
        root = Path(parent) / "collection"
        add_folders(root, [folder])
        with (root / "collection.yaml").open("a") as config:
            config.write(f"sampling: {{mode: {mode}}}\n")

        call = "from hapvr.cli import main; main()"
        command = [sys.executable, "-c", call, "index", "add", "--data", str(root)]
        before_s = sum(os.times()[2:4])
        with (
            subprocess.Popen(command, stdout=subprocess.DEVNULL) as process,
            PeakMemory(process.pid) as memory,
        ):
            process.wait()

        if process.returncode:
            raise SystemExit(f"index add of {folder} failed")
        return Cost(sum(os.times()[2:4]) - before_s, memory.peak_mib)


def index_file(path: Path, mode: SamplingMode, *, seconds: int) -> Cost:
    """How much more `hapvr index add` costs for a file than for its first seconds alone."""
    with tempfile.TemporaryDirectory() as parent:
        folders = Path(parent) / "whole", Path(parent) / "start"
        for folder in folders:
            folder.mkdir()
        whole, start = folders
        os.link(path, whole / path.name)
        copy_start(path, start / path.name)
        cost = index_folder(whole, mode)
        of_start = index_folder(start, mode)

    more_s = cost.cpu_s - of_start.cpu_s
    return Cost(more_s * seconds / (seconds - INDEXED_S), cost.peak_mib)


def copy_start(path: Path, to: Path) -> None:
    """The packets of the first `INDEXED_S` of a file."""
    with av.open(str(path)) as source, av.open(str(to), "w") as target:
        video = source.streams.video[0]
        stream = target.add_stream_from_template(video)
        for packet in source.demux(video):
            if packet.pts is None or packet.time_base is None:
                continue
            if packet.pts * packet.time_base < INDEXED_S:
                packet.stream = stream
                target.mux(packet)


def measure(
    kind: ArchiveFile, path: Path, names: list[str], *, seconds: int, rounds: int
) -> list[dict[str, Any]]:
    """A row per reader. Readers take turns, so that other load affects all of them alike."""
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            if name.startswith(ADD):
                mode: Any = name.removeprefix(ADD)
                cost = index_file(path, mode, seconds=seconds)
            else:
                cost = read_in_process(name, path)

            costs[name].append(cost)

    medians = {
        name: statistics.median(cost.cpu_s for cost in costs[name]) * 60 / seconds for name in names
    }
    return [
        {
            "file": kind.name,
            "MB/min": round(path.stat().st_size * 60 / seconds / 1e6),
            "reader": name,
            "CPU s/min": medians[name],
            "times as fast": max(medians.values()) / medians[name],
            "MiB": round(max(cost.peak_mib for cost in costs[name])),
            "frames": costs[name][0].frames,
        }
        for name in names
    ]


def main() -> None:
    """Measures and prints a table per file."""
    names = list(readers()) + [f"{ADD}{mode}" for mode in MODES]
    options = parse(
        __doc__,
        clips=Path(),
        folder=Path(),
        seconds=60,
        rounds=3,
        files=len(FILES),
        readers=tuple(names),
    )
    if options.folder != Path():
        cost = index_folder(options.folder, "thorough")
        show([{"index add": options.folder.name, "CPU s": cost.cpu_s, "MiB": round(cost.peak_mib)}])
        return

    with tempfile.TemporaryDirectory() as folder:
        for number, kind in enumerate(FILES[: options.files]):
            path = Path(folder) / f"{number}.mp4"
            write_file(path, kind, options.clips, options.seconds)
            readers_asked = list(options.readers)
            show(measure(kind, path, readers_asked, seconds=options.seconds, rounds=options.rounds))
            path.unlink()


if __name__ == "__main__":
    main()
