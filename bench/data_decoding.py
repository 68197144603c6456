"""Decoding and sampling one frame per second at a short side of 256 px, by several readers, on one core.

torchcodec needs FFmpeg's shared libraries beside its wheel, and is no dependency of this package: `pip install --no-deps
--target FOLDER torchcodec`, and FOLDER in PYTHONPATH. Readers that are not there are listed as absent.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np

from hapvr.video.decode import probe_video, sample_frames
from hapvr.video.geometry import display_size
from hapvr.video.pool import encode_jpeg

FPS = 1.0
SHORT_SIDE_PX = 256


def hapvr_reader(path: Path) -> int:
    """This package: the wanted frames of H.264 files, decord or PyAV for others."""
    return len(sample_frames(path, fps=FPS, short_side_px=SHORT_SIDE_PX).frames)


def hapvr_pyav_reader(path: Path) -> int:
    """This package decoding every frame with PyAV."""
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


def processor_s() -> float:
    """Processor seconds of this process and its children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measure_jpegs(clips: list[Path]) -> dict[str, Any]:
    """Bytes of a stored frame, and frames encoded per processor second."""
    frames = [
        frame for clip in clips for frame in sample_frames(clip, fps=FPS, short_side_px=SHORT_SIDE_PX).frames[:10]
    ]
    start = processor_s()
    sizes = [len(encode_jpeg(frame, quality=95)) for frame in frames]
    return {
        "bytes_per_frame": round(sum(sizes) / len(sizes)),
        "encoded_frames_per_core_s": round(len(sizes) / (processor_s() - start)),
    }


def measure_decoding(clips: list[Path], *, rounds: int) -> dict[str, Any]:
    """Processor seconds per reader, the best of `rounds` for each clip, in turn; and this package's rate as a part of the
    fastest of the others. Processor time, because some readers keep more than one thread busy.
    """
    chosen = {name: reader for name, reader in readers().items() if reader is not None}
    best = {name: dict.fromkeys(clips, float("inf")) for name in chosen}
    counts = dict.fromkeys(chosen, 0)
    for number in range(rounds):
        for clip in clips:
            for name, reader in chosen.items():
                start = processor_s()
                count = reader(clip)
                best[name][clip] = min(best[name][clip], processor_s() - start)
                counts[name] += count if number == 0 else 0
    seconds = {name: sum(times.values()) for name, times in best.items()}
    fastest = min(seconds[name] for name in chosen if not name.startswith("hapvr"))
    content_s = sum(probe_video(clip).duration_s or 0.0 for clip in clips)
    return {
        "clips": len(clips),
        "content_s": round(content_s, 1),
        "processor_s": {name: round(value, 3) for name, value in seconds.items()},
        "sampled_frames": counts,
        "content_s_per_core_s": round(content_s / seconds["hapvr"], 1),
        "clips_per_core_s": round(len(clips) / seconds["hapvr"], 2),
        "rate_against_fastest_other": round(fastest / seconds["hapvr"], 3),
        "jpegs": measure_jpegs(clips),
        "absent": [name for name, reader in readers().items() if reader is None],
    }
