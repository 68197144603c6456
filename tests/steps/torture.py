"""A folder of more than a hundred files that no collection should hold, and some good ones among them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import av
import numpy as np

from tests.conftest import write_clip, write_sound
from tests.video.conftest import VideoWriter, numbered_frame, write_video

HOSTILE_NAMES = (
    "$(touch pwned).mp4",
    "`touch pwned`.mp4",
    "; touch pwned ;.mp4",
    "-rf --.mp4",
    "%(id)s %s %n.mp4",
    "' OR 1=1 --\".mp4",
    "a\\..\\b.mp4",
    "動画 🎬 é.mp4",
    "x" * 240 + ".mp4",
    "file:etc?passwd#.mp4",
    "*.mp4",
    "two\nlines\x1b[31m.mp4",
)


def make_torture(folder: Path, *, rng: random.Random) -> list[str]:
    """Fill the folder; returns the relative names of the good files in it."""
    folder.mkdir(parents=True)
    writer = VideoWriter(folder)
    good = [write_clip(folder / f"good-{number}.mp4", seed=number, seconds=3) for number in range(2)]
    good += [writer.numbered("good.mkv", num_frames=25), writer.numbered("good.webm", codec="libvpx", num_frames=15)]
    _damage(folder, good[0], writer.noise("noise.mp4", num_frames=20), rng)
    _strange(folder, writer)
    _names(folder, good[0].read_bytes())
    _links(folder)
    return [path.name for path in good]


def _damage(folder: Path, quiet: Path, noisy: Path, rng: random.Random) -> None:
    for source in (quiet, noisy):
        data = source.read_bytes()
        for number in range(8):
            (folder / f"cut-{number:02d}-{source.name}").write_bytes(data[: len(data) * number // 8])
        for number in range(0, 12, 2):
            broken = bytearray(data)
            for _ in range(4**number // 1000 + 1):
                broken[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            (folder / f"flip-{number:02d}-{source.name}").write_bytes(broken)
    for suffix in ("mp4", "mkv", "webm", "avi", "ts", "flv"):
        (folder / f"other.{suffix}").write_bytes(quiet.read_bytes())
        (folder / f"zero.{suffix}").write_bytes(b"")
        (folder / f"zeros.{suffix}").write_bytes(bytes(50_000))
    (folder / "text.mp4").write_text("#!/bin/sh\ntouch pwned\n")
    (folder / "playlist.mp4").write_text("#EXTM3U\n#EXTINF:3,\n/etc/passwd\n#EXT-X-ENDLIST\n")
    (folder / "random.mp4").write_bytes(rng.randbytes(100_000))
    write_sound(folder / "sound.mp4")


def _strange(folder: Path, writer: VideoWriter) -> None:
    frames = [numbered_frame(number, width_px=128, height_px=96) for number in range(6)]
    small = [np.full((1, 1, 3), number, np.uint8) for number in range(4)]
    large = [np.full((4320, 7680, 3), 90, np.uint8)] * 2
    quick = {"preset": "ultrafast"}
    writer.numbered("single.mp4", num_frames=1)
    write_video(folder / "8k.mp4", large, codec_options=quick)
    write_video(folder / "1x1.mkv", small, codec="ffv1", pixel_format="bgr0")
    write_video(folder / "2x2.mp4", [np.zeros((2, 2, 3), np.uint8)] * 5)
    write_video(folder / "thin.mkv", [np.zeros((2, 4000, 3), np.uint8)] * 5, codec="ffv1", pixel_format="bgr0")
    write_video(folder / "240fps.mp4", frames * 80, fps=240)
    write_video(folder / "slow.mp4", frames, times_s=[10 * number for number in range(6)])
    write_video(folder / "endless.mkv", frames, times_s=[590.0 * number for number in range(6)])
    write_video(folder / "jumping.mkv", frames, times_s=[0, 1, 2, 100_000, 100_001, 100_002])
    write_video(folder / "live.mkv", frames, container_options={"live": "1"})
    write_video(folder / "bare.h264", frames)
    write_video(folder / "frames.mjpeg", frames, codec="mjpeg", pixel_format="yuvj420p")
    _shifted(folder / "negative.ts", frames, first=-900_000)
    back = _shifted(folder / "early.ts", frames, first=900_000).read_bytes()
    (folder / "backwards.ts").write_bytes(_shifted(folder / "late.ts", frames, first=90_000_000).read_bytes() + back)
    with av.open(str(folder / "many streams.mkv"), "w") as container:
        streams = [container.add_stream("mpeg4", rate=10) for _ in range(30)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for stream in streams:
            picture = av.VideoFrame.from_ndarray(numbered_frame(3, width_px=64, height_px=48), format="rgb24")
            container.mux(stream.encode(picture))
            container.mux(stream.encode())


def _shifted(path: Path, frames: list[np.ndarray], *, first: int) -> Path:
    """A transport stream whose clock starts at `first` ticks of 1 / 90000 s."""
    with av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as container:
        stream = container.add_stream("libx264", rate=10)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        packets = [
            packet
            for frame in [*(av.VideoFrame.from_ndarray(picture, format="rgb24") for picture in frames), None]
            for packet in stream.encode(frame)
        ]
        for packet in packets:
            shift = round(first / 90_000 / packet.time_base)
            packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
            container.mux(packet)
    return path


def _names(folder: Path, data: bytes) -> None:
    for name in HOSTILE_NAMES:
        (folder / name).write_bytes(data)
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.mp4"))).write_bytes(data)
    deep = folder / "a" / "b.mp4" / "c"
    deep.mkdir(parents=True)
    (deep / "deep.mp4").write_bytes(data)


def _links(folder: Path) -> None:
    (folder / "round").symlink_to(folder)
    (folder / "self.mp4").symlink_to("self.mp4")
    (folder / "dangling.mp4").symlink_to("nothing.mp4")
    (folder / "outside.mp4").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe.mp4")
