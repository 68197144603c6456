"""Real video files made by the tests; every frame shows its own number as eight black or white
fields."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition
from numpy.typing import NDArray

from tests.conftest import write_sound


def numbered_frame(number: int, *, width_px: int, height_px: int) -> NDArray[np.uint8]:
    """[H, W, 3] grey, with a row of eight fields at half height: the bits of the number, lowest
    first."""
    frame = np.full((height_px, width_px, 3), 128, np.uint8)
    for bit in range(8):
        columns = slice(bit * width_px // 8, (bit + 1) * width_px // 8)
        frame[height_px // 4 : 3 * height_px // 4, columns] = 235 if number >> bit & 1 else 20

    return frame


def read_numbers(frames: NDArray[np.uint8]) -> list[int]:
    """The numbers that frames [N, H, W, 3] show."""
    height_px, width_px = frames.shape[1:3]
    numbers = []
    for frame in frames:
        levels = [frame[height_px // 2, (2 * bit + 1) * width_px // 16].mean() for bit in range(8)]
        numbers.append(sum(1 << bit for bit, level in enumerate(levels) if level > 128))

    return numbers


def write_video(
    path: Path,
    frames: Sequence[NDArray[np.uint8]],
    *,
    times_s: Sequence[float] | None = None,
    fps: int = 10,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    rotation_deg: int | None = None,
    pixel_aspect: Fraction | None = None,
    container_options: dict[str, str] | None = None,
    codec_options: dict[str, str] | None = None,
) -> Path:
    """Encode frames [H, W, 3]; times_s: when each is shown, in steps of a millisecond, instead of a
    constant rate."""
    height_px, width_px = frames[0].shape[:2]
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=fps, options=codec_options or {})
        stream.width = width_px
        stream.height = height_px
        stream.pix_fmt = pixel_format
        if rotation_deg is not None:
            stream.set_display_rotation(rotation_deg)
        if pixel_aspect is not None:
            stream.codec_context.sample_aspect_ratio = pixel_aspect
        if times_s is not None:
            stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
        for index, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times_s is not None:
                frame.pts = round(times_s[index] * 1000)
                frame.time_base = Fraction(1, 1000)

            container.mux(stream.encode(frame))

        container.mux(stream.encode())

    return path


def write_film(
    path: Path,
    times_s: Sequence[float],
    *,
    sound_s: Sequence[tuple[float, float]] = (),
    lasts_s: float = 0.1,
    codec: str = "libx264",
    group: int = 250,
) -> Path:
    """Pictures that show 0, 1, 2 ..., each at its time in steps of a millisecond, the last one for
    `lasts_s`, a key frame in each `group`; and silence from one time to another, as sound of 8
    kHz."""
    packets = []
    with av.open(str(path), "w") as container:
        film = container.add_stream(codec, rate=10, options={"bf": "0", "g": str(group)})
        film.width = 128
        film.height = 96
        film.pix_fmt = "yuv420p"
        if codec == "libx264":
            film.codec_context.time_base = film.time_base = Fraction(1, 1000)
        unit = Fraction(1, 1000) if codec == "libx264" else Fraction(1, 10)
        sound = container.add_stream("aac", rate=8000, layout="mono") if sound_s else None
        for number, time_s in enumerate(times_s):
            picture = numbered_frame(number % 256, width_px=128, height_px=96)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = round(time_s / unit)
            frame.time_base = unit
            packets += film.encode(frame)

        packets += film.encode()
        for packet, time_s, until_s in zip(
            packets, times_s, [*times_s[1:], times_s[-1] + lasts_s], strict=True
        ):
            packet.duration = max(round((until_s - time_s) / packet.time_base), 1)

        for begin_s, end_s in sound_s:
            for start in range(round(begin_s * 8000), round(end_s * 8000), 1024):
                samples = np.zeros((1, 1024), np.float32)
                quiet = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
                quiet.sample_rate = 8000
                quiet.pts = start
                quiet.time_base = Fraction(1, 8000)
                packets += sound.encode(quiet)

        if sound is not None:
            packets += sound.encode()
        for packet in sorted(packets, key=lambda one: one.dts * one.time_base):
            container.mux(packet)

    return path


@dataclass(frozen=True)
class VideoWriter:
    """Writes clips into one folder."""

    folder: Path

    def numbered(
        self,
        name: str = "clip.mp4",
        *,
        num_frames: int = 30,
        width_px: int = 128,
        height_px: int = 96,
        **settings,
    ) -> Path:
        """A clip whose frames show 0, 1, 2 ..."""
        frames = [
            numbered_frame(number, width_px=width_px, height_px=height_px)
            for number in range(num_frames)
        ]
        return write_video(self.folder / name, frames, **settings)

    def corner(self, name: str = "corner.mp4", **settings) -> Path:
        """A clip of ten black frames 128 x 96 whose upper left quarter is white."""
        frame = np.zeros((96, 128, 3), np.uint8)
        frame[:48, :64] = 255
        return write_video(self.folder / name, [frame] * 10, **settings)

    def noise(self, name: str = "noise.mp4", *, num_frames: int = 40, **settings) -> Path:
        """A clip with many bytes per frame, for cutting and damaging."""
        rng = np.random.default_rng(0)
        frames = [rng.integers(0, 256, (96, 128, 3), dtype=np.uint8) for _ in range(num_frames)]
        return write_video(self.folder / name, frames, **settings)

    def song(self, name: str = "song.m4v") -> Path:
        """A second of sound with a cover picture."""
        sound = write_sound(self.folder / "sound.mp4")
        path = self.folder / name
        with av.open(str(sound)) as source, av.open(str(path), "w", format="mp4") as container:
            track = container.add_stream_from_template(source.streams.audio[0])
            cover = container.add_stream("mjpeg", rate=1)
            cover.width = 64
            cover.height = 48
            cover.pix_fmt = "yuvj420p"
            cover.disposition = Disposition.attached_pic
            for packet in source.demux(audio=0):
                if packet.dts is not None:
                    packet.stream = track
                    container.mux(packet)

            container.mux(
                cover.encode(
                    av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
                )
            )
            container.mux(cover.encode())

        return path


@pytest.fixture
def videos(tmp_path: Path) -> VideoWriter:
    """Makes clips in the test's folder."""
    return VideoWriter(tmp_path)
