"""Generated videos as files, in folders that record what these were made from."""

import json
import shutil
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from hapvr.demo.edits import NORMAL_CRF
from hapvr.demo.scene import Pixels
from hapvr.errors import DataError
from hapvr.files import read_json_as, write_atomic, write_text

_STATE_FILE = "corpus.json"


@dataclass(frozen=True)
class _State:
    fingerprint: str


def folder_fingerprint(folder: Path) -> str:
    """The fingerprint that a folder was made from. Raises DamagedError if it has none."""
    return read_json_as(folder / _STATE_FILE, _State, hint="remove the folder").fingerprint


def prepare_folder(folder: Path, *, fingerprint: str) -> None:
    """Make an empty `folder` that records the fingerprint, unless an earlier call with the same
    fingerprint did. Videos that were generated with another fingerprint are removed. Raises
    DataError for a folder that holds something else."""
    if (folder / _STATE_FILE).exists():
        if folder_fingerprint(folder) == fingerprint:
            return
        (folder / "benchmark.json").unlink(missing_ok=True)
        if (folder / "videos").exists():
            shutil.rmtree(folder / "videos")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            f"generated videos: {folder} holds something else; name another output folder or source"
        )

    write_text(folder / _STATE_FILE, json.dumps({"fingerprint": fingerprint}) + "\n")


def write_mp4(path: Path, frames: Pixels, *, fps: float, crf: int = NORMAL_CRF) -> None:
    """Encode frames [N >= 1, H, W, 3] as H.264 in mp4; the file appears under its name when it is
    complete. fps: frames per second. crf: x264's constant rate factor, 0 (lossless) to 51. The last
    rows and columns are repeated where a side is odd or below 16, as 4:2:0 video has even sides.
    One thread encodes, since the bytes depend on their number."""
    missing = [max(side + side % 2, 16) - side for side in frames.shape[1:3]]
    padded = np.pad(frames, ((0, 0), (0, missing[0]), (0, missing[1]), (0, 0)), mode="edge")
    with (
        write_atomic(path) as part,
        av.open(str(part), "w", format="mp4", options={"fflags": "+bitexact"}) as container,
    ):
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = padded.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.options = {"preset": "superfast", "crf": str(crf)}
        for picture in padded:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
