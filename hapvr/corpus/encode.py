"""Frames to H.264 files, the same bytes every time."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from hapvr.corpus.edits import NORMAL_CRF
from hapvr.corpus.textures import Pixels
from hapvr.errors import ArgumentError

MIN_SIDE_PX = 16


def write_mp4(path: Path, frames: Pixels, *, fps: float, crf: int = NORMAL_CRF) -> None:
    """Encode frames [N >= 1, H, W, 3] as H.264 in mp4, beside its final name and then renamed.

    fps: frames per second. crf: x264's constant rate factor, 0 (lossless) to 51. An odd last row or column is repeated,
    since 4:2:0 video has even sides. One encoder thread, since the bytes depend on their number.
    """
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or len(frames) == 0:
        raise ArgumentError(f"encode: got {frames.dtype} {list(frames.shape)}; wanted uint8 frames [N >= 1, H, W, 3]")
    height, width = frames.shape[1:3]
    pad = [(0, max(side + side % 2, MIN_SIDE_PX) - side) for side in (height, width)]
    padded = np.pad(frames, ((0, 0), *pad, (0, 0)), mode="edge") if any(extra for _, extra in pad) else frames
    part = path.with_name(path.name + ".part")
    with av.open(str(part), "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = padded.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.options = {"preset": "superfast", "crf": str(crf)}
        for picture in padded:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    part.replace(path)
