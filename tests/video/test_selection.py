"""Decoding the wanted frames alone: the same bits as decoding all, whatever the stream is made of."""

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


@pytest.mark.parametrize(
    "options",
    [
        "bframes=3:b-pyramid=2:keyint=25:scenecut=0",
        "bframes=3:b-pyramid=0:ref=5:weightp=2:keyint=300:scenecut=0",
        "bframes=3:open-gop=1:keyint=10:scenecut=0",
        "bframes=0:keyint=1",
        "intra-refresh=1:bframes=2:keyint=10",
        "tff=1:bframes=2:keyint=20:scenecut=0",
    ],
)
def test_selected_frames_equal_those_of_decoding_all(videos: VideoWriter, options: str) -> None:
    """Pyramids, many references, open and closed groups, pictures of their own, no key frames, fields, slices."""
    path = write_video(videos.folder / "clip.mkv", moving(), codec_options={"x264-params": options})
    packets = read_packets(path)
    assert len(packets.pts) == 60
    for fps in (0.4, 3.0):
        ours, all_decoded = (sample_frames(path, fps=fps, short_side_px=None, decode_all=d) for d in (False, True))
        assert (ours.decoder, all_decoded.decoder) == (PYAV_SELECTED, PYAV)
        np.testing.assert_array_equal(ours.frames, all_decoded.frames)
        np.testing.assert_array_equal(ours.timestamps_s, all_decoded.timestamps_s)


def test_damage_to_a_wanted_frame_gives_what_decoding_all_does(videos: VideoWriter) -> None:
    """It is noticed, and everything is decoded to make the best of it."""
    path = write_video(videos.folder / "clip.mp4", moving(), codec_options={"x264-params": "keyint=10:scenecut=0"})
    packets = read_packets(path)
    wanted = [packets.pts[20]]
    with av.open(str(path)) as container:
        packet = next(packet for packet in container.demux(video=0) if packet.pts == wanted[0])
        first, end = packet.pos + packet.size // 2, packet.pos + packet.size
    with path.open("r+b") as file:  # its picture begins well and ends badly
        file.seek(first)
        file.write(bytes(end - first))
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
