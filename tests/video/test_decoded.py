"""Frames that are decoded once, for networks and hashes."""

import numpy as np
import pytest

from hapvr.video.content import cut_to, seen_box
from hapvr.video.decoded import DECODED_FRAMES, DecodedFrames
from hapvr.video.frames import (
    SAMPLED_FRAMES,
    content_box,
    decode_jpegs,
    encode_jpeg,
    luma,
    picture_hash,
    spread,
    square,
)
from hapvr.video.settings import Picture
from tests.scorer.bundles import scene

BARRED = [np.pad(scene(seed), ((40, 40), (0, 0), (0, 0))) for seed in range(2 * DECODED_FRAMES + 3)]
JPEGS = list(map(encode_jpeg, BARRED))


@pytest.mark.parametrize("picture", ["cropped", "squeezed"])
def test_a_network_sees_each_frame_without_what_is_no_film(picture: Picture) -> None:
    pictures, _ = DecodedFrames(JPEGS, picture).squares(96)
    whole = cut_to(decode_jpegs(JPEGS), seen_box(JPEGS, picture))
    np.testing.assert_array_equal(pictures, square(whole, 96, picture))


@pytest.mark.parametrize("picture", ["cropped", "squeezed"])
def test_hashes_are_those_of_the_grey_levels_without_bars(picture: Picture) -> None:
    """Whatever the network sees."""
    _, hashes = DecodedFrames(JPEGS, picture).squares(96)
    box = content_box([luma(jpeg) for jpeg in spread(JPEGS, SAMPLED_FRAMES)])
    assert hashes.tolist() == [picture_hash(luma(jpeg), box) for jpeg in JPEGS]


def test_a_part_is_that_of_all_frames() -> None:
    frames = DecodedFrames(JPEGS, "cropped")
    pictures, hashes = frames.part(0, len(frames))
    part, of_part = frames.part(3, 5)
    np.testing.assert_array_equal(part, pictures[3:5])
    assert of_part.tolist() == hashes[3:5].tolist()
