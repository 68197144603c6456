"""Decoding the wanted frames alone: the same bits as decoding all, whatever the stream is made of."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from hapvr.video.decode import (
    PYAV,
    PYAV_SELECTED,
    IncompleteSelectionError,
    iter_selected,
    read_packets,
    sample_frames,
)
from tests.video.conftest import VideoWriter, write_video


def moving(num_frames: int = 60) -> list[NDArray[np.uint8]]:
    """Smooth colours that drift and brighten under a little noise, so that every kind of prediction is used."""
    rng = np.random.default_rng(3)
    wide = np.kron(rng.integers(0, 255, (6, 30, 3)), np.ones((16, 16, 1)))
    noise = rng.normal(0, 4, (num_frames, 96, 128, 3))
    frames = [wide[:, 5 * k : 5 * k + 128] * (0.5 + k / 120) + noise[k] for k in range(num_frames)]
    return [frame.clip(0, 255).astype(np.uint8) for frame in frames]


def packet_places(path: Path) -> list[tuple[int, int, int]]:
    """(pts, offset in the file, size) of the packets, in the order of the file."""
    with av.open(str(path)) as container:
        found = [(packet.pts, packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    return [(pts, pos, size) for pts, pos, size in found if pts is not None and pos is not None]


def overwrite(path: Path, offset: int, size: int) -> None:
    """Zeros over the second half of a packet: its picture begins well and ends badly."""
    with path.open("r+b") as file:
        file.seek(offset + size // 2)
        file.write(bytes(size - size // 2))


@pytest.mark.parametrize(
    ("options", "num_groups"),
    [
        ("bframes=3:b-pyramid=2:keyint=25:scenecut=0", 3),
        ("bframes=3:b-pyramid=0:ref=5:weightp=2:keyint=300:scenecut=0", 1),
        ("bframes=3:open-gop=1:keyint=10:scenecut=0", None),
        ("bframes=0:keyint=1", 60),
        ("intra-refresh=1:bframes=2:keyint=10", 1),
        ("tff=1:bframes=2:keyint=20:scenecut=0", 3),
    ],
)
def test_selected_frames_equal_those_of_decoding_all(videos: VideoWriter, options: str, num_groups: int | None) -> None:
    """Pyramids, many references, open and closed groups, pictures of their own, no key frames, fields, slices."""
    path = write_video(videos.folder / "clip.mkv", moving(), codec_options={"x264-params": options})
    packets = read_packets(path)
    assert packets is not None
    assert len(packets.pts) == 60
    # an open group's key frame is no fresh start: x264 begins the file, and no other group, with an IDR picture
    assert len(packets.groups) == (num_groups or 1)
    for fps in (0.4, 3.0):
        ours, all_decoded = (sample_frames(path, fps=fps, short_side_px=None, decode_all=d) for d in (False, True))
        assert (ours.decoder, all_decoded.decoder) == (PYAV_SELECTED, PYAV)
        np.testing.assert_array_equal(ours.frames, all_decoded.frames)
        np.testing.assert_array_equal(ours.timestamps_s, all_decoded.timestamps_s)


def test_groups_without_a_wanted_frame_are_not_decoded(videos: VideoWriter) -> None:
    """Damage there is not noticed: at a frame every two seconds every other group of a second is passed over."""
    path = write_video(videos.folder / "clip.mp4", moving(), codec_options={"x264-params": "keyint=10:scenecut=0"})
    whole = sample_frames(path, fps=0.5, short_side_px=None)
    for pts, offset, size in packet_places(path)[11:20]:
        assert pts > 0
        overwrite(path, offset, size)
    again = sample_frames(path, fps=0.5, short_side_px=None)
    assert again.decoder == PYAV_SELECTED
    np.testing.assert_array_equal(again.frames, whole.frames)


def test_damage_to_a_wanted_frame_gives_what_decoding_all_does(videos: VideoWriter) -> None:
    """It is noticed, and everything is decoded to make the best of it."""
    path = write_video(videos.folder / "clip.mp4", moving(), codec_options={"x264-params": "keyint=10:scenecut=0"})
    packets = read_packets(path)
    assert packets is not None
    wanted = [packets.pts[20]]
    (offset, size) = next((pos, size) for pts, pos, size in packet_places(path) if pts == wanted[0])
    overwrite(path, offset, size)
    with pytest.raises(IncompleteSelectionError):
        list(iter_selected(path, packets, wanted))
    ours, all_decoded = (sample_frames(path, fps=0.5, short_side_px=None, decode_all=d) for d in (False, True))
    assert ours.decoder == PYAV
    np.testing.assert_array_equal(ours.frames, all_decoded.frames)


@pytest.mark.parametrize(
    ("name", "codec"), [("clip.mp4", "libx264"), ("clip.webm", "libvpx-vp9"), ("old.webm", "libvpx")]
)
def test_frames_equal_those_of_another_reader(videos: VideoWriter, name: str, codec: str) -> None:
    """decord finds the frames by counting them, and shows the same pixels, also behind a cut."""
    decord = pytest.importorskip("decord")
    path = write_video(videos.folder / name, [*moving(30), *reversed(moving(30))], codec=codec)
    ours = sample_frames(path, fps=2, short_side_px=None).frames
    np.testing.assert_array_equal(ours, decord.VideoReader(str(path)).get_batch(range(0, 60, 5)).asnumpy())
