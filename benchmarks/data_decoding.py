"""Decoding and sampling one frame per second at a short side of 256 px, by several readers, on one core."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np

from hapvr.video.decode import sample_frames
from hapvr.video.geometry import display_size

FPS = 1.0
SHORT_SIDE_PX = 256


def hapvr_reader(path: Path) -> int:
    """This package: decord or PyAV, whichever is exact for the file."""
    return len(sample_frames(path, fps=FPS, short_side_px=SHORT_SIDE_PX).frames)


def hapvr_pyav_reader(path: Path) -> int:
    """This package with PyAV alone."""
    return len(sample_frames(path, fps=FPS, short_side_px=SHORT_SIDE_PX, decoder="pyav").frames)


def pyav_reader(path: Path) -> int:
    """A plain loop over all frames that converts those that are due."""
    frames = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        for frame in container.decode(stream):
            if frame.time is not None and frame.time >= len(frames) / FPS:
                width, height = display_size(
                    frame.width, frame.height, pixel_aspect=1, rotation_deg=0, short_side_px=SHORT_SIDE_PX
                )
                frames.append(frame.reformat(width=width, height=height, format="rgb24").to_ndarray())
    return len(np.stack(frames))


def torchcodec_reader(path: Path) -> int:
    """torchcodec, asked for the frames on display at each second."""
    from torchcodec.decoders import VideoDecoder
    from torchvision.transforms.v2.functional import resize

    decoder = VideoDecoder(str(path), num_ffmpeg_threads=1)
    first, last = decoder.metadata.begin_stream_seconds or 0.0, decoder.metadata.end_stream_seconds or 1.0
    times = np.arange(first, last, 1 / FPS).tolist()
    return len(resize(decoder.get_frames_played_at(times).data, SHORT_SIDE_PX))


def ffmpeg_reader(path: Path) -> int:
    """The ffmpeg command, writing raw frames to a pipe."""
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        width, height = display_size(
            context.width, context.height, pixel_aspect=1, rotation_deg=0, short_side_px=SHORT_SIDE_PX
        )
    command = ["ffmpeg", "-v", "error", "-threads", "1", "-filter_threads", "1", "-i", str(path)]
    command += ["-vf", f"fps={FPS},scale={width}:{height}", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    return len(done.stdout) // (width * height * 3)


def readers() -> dict[str, Callable[[Path], int] | None]:
    """Readers by name; None for one that is not installed."""
    try:
        import torchcodec.decoders

        codec: Callable[[Path], int] | None = torchcodec_reader if torchcodec.decoders else None
    except (ImportError, RuntimeError, OSError):
        codec = None
    return {
        "hapvr": hapvr_reader,
        "hapvr_pyav": hapvr_pyav_reader,
        "pyav": pyav_reader,
        "torchcodec": codec,
        "ffmpeg": ffmpeg_reader if shutil.which("ffmpeg") else None,
    }


def measure_decoding(clips: list[Path], *, rounds: int) -> dict[str, Any]:
    """Seconds per reader, the best of `rounds` for each clip, in turn; and this package's rate as a part of the fastest."""
    chosen = {name: reader for name, reader in readers().items() if reader is not None}
    best = {name: dict.fromkeys(clips, float("inf")) for name in chosen}
    counts = dict.fromkeys(chosen, 0)
    for number in range(rounds):
        for clip in clips:
            for name, reader in chosen.items():
                start = time.perf_counter()
                count = reader(clip)
                best[name][clip] = min(best[name][clip], time.perf_counter() - start)
                counts[name] += count if number == 0 else 0
    seconds = {name: sum(times.values()) for name, times in best.items()}
    fastest = min(seconds[name] for name in chosen if not name.startswith("hapvr"))
    with_duration = [av.open(str(clip)) for clip in clips]
    content_s = sum((container.duration or 0) / av.time_base for container in with_duration)
    return {
        "clips": len(clips),
        "content_s": round(content_s, 1),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "sampled_frames": counts,
        "content_s_per_core_s": round(content_s / seconds["hapvr"], 1),
        "clips_per_core_s": round(len(clips) / seconds["hapvr"], 2),
        "rate_against_fastest_other": round(fastest / seconds["hapvr"], 3),
        "absent": [name for name, reader in readers().items() if reader is None],
    }
