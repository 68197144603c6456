"""What files hold, whatever their headers say: real files, and headers that lie in each way."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hapvr.errors import VideoError
from hapvr.video.detail import blockiness_of, detail_of, fineness_of
from hapvr.video.facts import DETAIL_SCALES, FileFacts
from hapvr.video.measure import measure_file, measure_files
from hapvr.video.settings import SamplingConfig
from hapvr.video.units import SCAN
from tests.video.conftest import VideoWriter, numbered_frame, write_video

FPS = 10
NUM_FRAMES = 40
Picture = NDArray[np.uint8]


@pytest.fixture
def plain(videos: VideoWriter) -> Path:
    """Four seconds of pictures, no sound."""
    return videos.noise("plain.mp4", num_frames=NUM_FRAMES)


def boxes(data: bytes, name: bytes) -> list[int]:
    """Where the boxes of this name begin in an MP4 file."""
    box_starts = []
    start = data.find(name)
    while start >= 0:
        box_starts.append(start - 4)
        start = data.find(name, start + 1)

    return box_starts


def with_duration_of_one_tick(plain: Path, to: Path) -> Path:
    """All three headers that have a duration, of version 0."""
    data = bytearray(plain.read_bytes())
    for name, offset in ((b"mvhd", 24), (b"tkhd", 28), (b"mdhd", 24)):
        for start in boxes(bytes(data), name):
            data[start + offset : start + offset + 4] = struct.pack(">I", 1)

    to.write_bytes(data)
    return to


def with_padding(plain: Path, to: Path) -> Path:
    """As a cover, tags or an attachment would add."""
    to.write_bytes(plain.read_bytes() + struct.pack(">I4s", 500_008, b"free") + bytes(500_000))
    return to


def remuxed(
    plain: Path, to: Path, *, live: bool = False, sound: str = "", faststart: bool = False
) -> Path:
    """The same packets in another container. live: without a duration. sound: the codec of noise
    that is added, `silence`, as AAC encodes it, or `silence CODEC`."""
    options = {"live": "1"} if live else {}
    if faststart and to.suffix == ".mp4":
        options["movflags"] = "faststart"
    with av.open(str(plain)) as source, av.open(str(to), "w", options=options) as container:
        stream = source.streams.video[0]
        track = container.add_stream_from_template(stream)
        codec = "aac" if sound == "silence" else sound.removeprefix("silence ")
        heard = container.add_stream(codec, 44100) if codec else None
        for packet in source.demux(stream):
            if packet.dts is not None:
                packet.stream = track
                container.mux(packet)

        if heard is not None:
            rng = np.random.default_rng(0)
            for start in range(0, 44100 * NUM_FRAMES // FPS, 1024):
                level = 0 if sound.startswith("silence") else 8000
                samples = (level * rng.normal(size=(1, 1024))).astype(np.int16)
                frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
                frame.sample_rate = 44100
                frame.pts = start
                container.mux(heard.encode(frame))

            container.mux(heard.encode())

    return to


def cut(plain: Path, to: Path) -> Path:
    """An unfinished download of a file whose index comes first."""
    with av.open(str(plain)) as source:
        options = {"movflags": "faststart"}
        with av.open(str(to), "w", options=options) as container:
            track = container.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.dts is not None:
                    packet.stream = track
                    container.mux(packet)

    data = to.read_bytes()
    to.write_bytes(data[: len(data) * 93 // 100])
    return to


def with_hole(plain: Path, to: Path) -> Path:
    """As of a download of pieces, of which one has not come."""
    data = bytearray(plain.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 16384] = bytes(16384)
    to.write_bytes(data)
    return to


def overwritten(plain: Path, to: Path) -> Path:
    """As by a drive that has mixed up what it holds."""
    data = bytearray(plain.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 65536] = np.random.default_rng(0).bytes(65536)
    to.write_bytes(data)
    return to


LIES: dict[str, tuple[Callable[[Path, Path], Path], str, bool]] = {
    "one tick": (with_duration_of_one_tick, "tick.mp4", False),
    "padding": (with_padding, "padded.mp4", False),
    "no duration": (lambda plain, to: remuxed(plain, to, live=True), "live.mkv", False),
    "silence": (lambda plain, to: remuxed(plain, to, sound="silence"), "silent.mp4", False),
    "big sound": (lambda plain, to: remuxed(plain, to, sound="pcm_s16le"), "loud.mkv", True),
    "sound": (lambda plain, to: remuxed(plain, to, sound="aac"), "sound.mp4", True),
    "sound without lengths": (
        lambda plain, to: remuxed(plain, to, sound="aac"),
        "sound.mkv",
        True,
    ),
    "silence of a constant rate": (
        lambda plain, to: remuxed(plain, to, sound="silence mp2"),
        "mp2.mkv",
        False,
    ),
    "silence in full": (
        lambda plain, to: remuxed(plain, to, sound="silence pcm_s16le"),
        "pcm.mkv",
        False,
    ),
    "sound of a constant rate": (
        lambda plain, to: remuxed(plain, to, sound="mp2"),
        "mp2.mkv",
        True,
    ),
    "silence without lengths": (
        lambda plain, to: remuxed(plain, to, sound="silence"),
        "silent.mkv",
        False,
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_headers_change_nothing_that_is_counted(plain: Path, tmp_path: Path, lie: str) -> None:
    make, name, sound = LIES[lie]
    wanted = measure_file(plain)
    facts = measure_file(make(plain, tmp_path / name))
    assert facts.video_bytes == wanted.video_bytes
    assert facts.length_s == pytest.approx(NUM_FRAMES / FPS, abs=0.05)
    assert facts.fps == pytest.approx(FPS, rel=0.02)
    assert facts.damage == ""
    assert facts.sound == sound
    assert facts.detail == pytest.approx(wanted.detail, abs=1e-6)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "pictures"),
        (with_hole, "pictures are damaged"),
        (overwritten, "pictures are damaged"),
    ],
)
def test_what_is_partly_readable_is_damaged(
    plain: Path, tmp_path: Path, damage: Callable[[Path, Path], Path], said: str
) -> None:
    assert said in measure_file(damage(plain, tmp_path / "damaged.mp4")).damage


@pytest.mark.parametrize("suffix", ["mpg", "ts", "mkv"])
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "overwritten"])
def test_a_picture_of_mpeg_2_without_some_of_its_rows_is_damaged(
    tmp_path: Path, suffix: str, is_whole: bool
) -> None:
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (96, 128, 3), dtype=np.uint8) for _ in range(50)]
    path = write_video(tmp_path / f"a.{suffix}", frames, fps=25, codec="mpeg2video")
    if not is_whole:
        data = bytearray(path.read_bytes())
        second_row = data.index(b"\x00\x00\x01\x02", len(data) // 2)
        data[second_row : second_row + 100] = 100 * b"\x55"
        path.write_bytes(data)

    assert ("damaged" in measure_file(path).damage) is not is_whole


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "overwritten"])
def test_a_picture_of_motion_jpeg_with_other_bytes_in_it_is_damaged(
    tmp_path: Path, is_whole: bool
) -> None:
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (96, 128, 3), dtype=np.uint8) for _ in range(10)]
    path = write_video(tmp_path / "a.avi", frames, codec="mjpeg", pixel_format="yuvj420p")
    if not is_whole:
        data = bytearray(path.read_bytes())
        scan = data.index(SCAN, len(data) // 2)
        data[scan + 1000 : scan + 1600] = rng.bytes(600)
        path.write_bytes(data)
    assert ("pictures are damaged" in measure_file(path).damage) is not is_whole


@pytest.mark.parametrize("suffix", ["mkv", "flv", "ts"])
def test_what_is_missing_in_the_middle_is_seen(plain: Path, tmp_path: Path, suffix: str) -> None:
    """Some containers go on behind what cannot be read, and do not say that pictures lack."""
    whole = remuxed(plain, tmp_path / f"whole.{suffix}")
    assert measure_file(whole).pause_s == pytest.approx(1 / FPS, abs=0.01)
    facts = measure_file(overwritten(whole, tmp_path / f"damaged.{suffix}"))
    ends_early = facts.length_s < (facts.declared_s or 0.0) - 1
    assert facts.damage or facts.pause_s > 4 / FPS or ends_early


def test_the_last_picture_may_stay(tmp_path: Path) -> None:
    """A slide that stays for 4 s counts as long; the rate is that of the pictures that move."""
    times_s = [number / 10 for number in range(20)] + [6.0, 6.1]
    frames = [numbered_frame(number, width_px=128, height_px=96) for number in range(22)]
    facts = measure_file(write_video(tmp_path / "slides.mp4", frames, times_s=times_s))
    assert facts.length_s == pytest.approx(6.2, abs=0.05)
    assert facts.fps == pytest.approx(10, rel=0.02)


def test_what_a_trimmed_file_hides_does_not_count(plain: Path, tmp_path: Path) -> None:
    """As phones trim: an edit list hides the first 1.5 s, which stay in the file."""
    trimmed = tmp_path / "trimmed.mp4"
    with av.open(str(plain)) as source, av.open(str(trimmed), "w") as container:
        track = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None and packet.pts is not None and packet.time_base is not None:
                hidden = round(1.5 / packet.time_base)
                packet.pts -= hidden
                packet.dts -= hidden
                packet.stream = track
                container.mux(packet)

    facts = measure_file(trimmed)
    assert facts.length_s == pytest.approx(NUM_FRAMES / FPS - 1.5, abs=0.11)
    assert facts.damage == ""
    assert facts.video_bytes < measure_file(plain).video_bytes


def test_files_are_measured_in_workers(plain: Path, tmp_path: Path) -> None:
    """Each in its turn, what is no video with its reason."""
    text = tmp_path / "text.mp4"
    text.write_text("no video")
    (_, facts), (_, failed) = measure_files([plain, text], config=SamplingConfig(workers=1))
    assert isinstance(facts, FileFacts)
    assert facts == measure_file(plain)
    assert isinstance(failed, VideoError)


@pytest.mark.parametrize("share", [0.8, 0.97, 0.999], ids=["fifth", "end", "last bytes"])
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_file_that_is_cut_is_damaged_whatever_is_missing(
    plain: Path, tmp_path: Path, suffix: str, share: float
) -> None:
    """Also where sound alone is missing, or pictures that are shown before the last one."""
    whole = remuxed(plain, tmp_path / f"whole.{suffix}", sound="aac", faststart=True)
    data = whole.read_bytes()
    cut_file = tmp_path / f"cut.{suffix}"
    cut_file.write_bytes(data[: int(len(data) * share)])
    assert measure_file(whole).damage == ""
    assert measure_file(cut_file).damage != ""


def test_what_a_program_adds_behind_the_media_is_no_damage(plain: Path) -> None:
    with plain.open("ab") as file:
        file.write(b"a tag that is no box of MP4")
    assert measure_file(plain).damage == ""


def test_measuring_a_large_file_is_no_standstill(plain: Path, tmp_path: Path) -> None:
    """One with a hole that takes longer to read than `timeout_s` is measured."""
    large = remuxed(plain, tmp_path / "large.ts")
    os.truncate(large, 600 * 2**20)
    config = SamplingConfig(workers=1, timeout_s=1)
    ((_, facts),) = measure_files([large], config=config)
    assert isinstance(facts, FileFacts)


def test_a_film_in_an_archive_codec_is_measured_where_it_is_read(videos: VideoWriter) -> None:
    """With the setting that lets it be decoded; without it, the reason names the setting."""
    film = videos.noise("film.mkv", codec="ffv1", num_frames=NUM_FRAMES)
    ((_, refused),) = measure_files([film], config=SamplingConfig(workers=1))
    assert isinstance(refused, VideoError)
    assert "sampling.archive_codecs" in str(refused)
    config = SamplingConfig(workers=1, archive_codecs=True)
    ((_, facts),) = measure_files([film], config=config)
    assert isinstance(facts, FileFacts)
    assert facts.length_s == pytest.approx(NUM_FRAMES / FPS)


def test_a_film_of_webp_is_measured_by_its_frames(tmp_path: Path) -> None:
    film = tmp_path / "film.webp"
    images = [
        Image.fromarray(numbered_frame(number, width_px=160, height_px=120)) for number in range(8)
    ]
    images[0].save(film, save_all=True, append_images=images[1:], duration=250)
    facts = measure_file(film)
    assert facts.length_s == 2.0
    assert facts.fps == 4.0
    assert not facts.sound
    assert facts.damage == ""
    assert facts.video_bytes == film.stat().st_size


def test_measuring_says_which_file_and_how_far_it_is(plain: Path) -> None:
    messages: list[str] = []
    list(measure_files([plain], config=SamplingConfig(workers=1), doing=messages.append))
    assert messages
    assert all(words.startswith("plain.mp4: measuring") for words in messages)
    assert messages[-1].startswith("plain.mp4: measuring, at 0:00:0")


@pytest.mark.parametrize("scale", [0.35, 0.5])
def test_an_enlarged_picture_has_little_detail(scale: float) -> None:
    """Of shapes with sharp edges, which are there at any size."""
    rng = np.random.default_rng(1)
    small = rng.integers(0, 255, (24, 32), dtype=np.uint8)
    sharp = np.kron(small, np.ones((16, 16), np.uint8))
    height, width = sharp.shape
    shrunk = Image.fromarray(sharp).resize((round(width * scale), round(height * scale)))
    enlarged = np.asarray(shrunk.resize((width, height), Image.Resampling.BICUBIC))
    place = DETAIL_SCALES.index(scale)
    assert detail_of(enlarged)[place] < 0.5 * detail_of(sharp)[place]
    assert detail_of(np.full((200, 200), 90, np.uint8)) == ()


def compressed(frames: list[Picture], to: Path, crf: int) -> Path:
    return write_video(to, frames, codec_options={"crf": str(crf)})


def decoded(path: Path) -> list[Picture]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_a_copy_of_a_copy_shows_less_that_is_fine_however_many_bits_it_has(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texture = rng.integers(0, 256, (96, 400, 3), dtype=np.uint8)
    frames = [texture[:, 3 * number : 3 * number + 128] for number in range(40)]
    original = compressed(frames, tmp_path / "original.mp4", 20)
    worn = compressed(decoded(original), tmp_path / "worn.mp4", 40)
    again = compressed(decoded(worn), tmp_path / "again.mp4", 5)
    fineness = measure_file(original).fineness
    assert fineness == pytest.approx(fineness_of(decoded(original)[6].mean(axis=-1)), rel=0.1)
    assert measure_file(again).fineness < 0.95 * fineness


def test_blocks_of_a_codec_are_told_from_what_a_picture_shows() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (29, 37), dtype=np.uint8)
    texture = np.asarray(Image.fromarray(noise).resize((256, 192), Image.Resampling.BICUBIC))
    plain = blockiness_of(texture)
    blocks = np.kron(texture[::8, ::8], np.ones((8, 8), np.uint8))
    assert plain == pytest.approx(1, abs=0.1)
    assert blockiness_of(blocks) > 2 * plain
    assert blockiness_of(np.zeros((8, 8), np.uint8)) == 0


def test_pictures_are_measured_at_their_times_not_at_key_frames(tmp_path: Path) -> None:
    """A film of flat pictures, all but one of whose places show something fine."""
    flat = np.full((96, 128, 3), 128, np.uint8)
    fine = flat.copy()
    fine[::2] = 20
    frames = [fine if 5 <= number < 40 else flat for number in range(40)]
    film = write_video(tmp_path / "film.mp4", frames, codec_options={"g": "250"})
    assert measure_file(film).fineness > 20
    assert measure_file(film).num_pictures == len(frames)
