"""Perceptual hashes: what they are, what they survive, and which pictures have none."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from hapvr.seeding import numpy_rng
from hapvr.video.decoded import DecodedFrames
from hapvr.video.frames import (
    HASH_SIDE_PX,
    NO_HASH,
    Hashes,
    encode_jpeg,
    picture_hash,
)
from tests.scorer.bundles import scene

LUMA = np.repeat([[0.299], [0.587], [0.114]], 3, axis=1)


def grey(seed: int) -> NDArray[np.uint8]:
    return np.asarray(scene(seed).mean(axis=2), np.uint8)


def frame_hashes(pictures: Sequence[NDArray[np.uint8]]) -> Hashes:
    """Of the frames of one video, stored as they are."""
    frames = DecodedFrames(list(map(encode_jpeg, pictures)), "cropped")
    return frames.part(0, len(frames))[1]


def bits(first: int, second: int) -> int:
    return (first ^ second).bit_count()


def test_the_hash_is_the_sign_of_low_frequencies_against_their_median() -> None:
    """A loop over the definition of the cosine transform."""
    small = numpy_rng(0, "hash").integers(0, 256, (HASH_SIDE_PX, HASH_SIDE_PX)).astype(np.uint8)
    places = np.arange(HASH_SIDE_PX)
    waves = [np.cos(np.pi * k * (2 * places + 1) / (2 * HASH_SIDE_PX)) for k in range(1, 9)]
    wanted = np.array(
        [(small * np.outer(down, across)).sum() for down in waves for across in waves]
    )
    signs = "".join("1" if one > np.median(wanted) else "0" for one in wanted)
    assert picture_hash(small) == int(signs, 2)
    assert signs.count("1") == 32


def test_a_golden_hash() -> None:
    """Of a ramp with a bright square, so that stored hashes stay comparable."""
    picture = np.add.outer(np.arange(96), np.arange(128)).astype(np.uint8)
    picture[20:50, 30:80] = 255
    assert picture_hash(picture) == 0x9F6060609F97929F


def test_a_hash_survives_grey_noise_scale_and_bars_but_no_flip() -> None:
    """Within the radius of a look-up, where unrelated frames differ in about 32 bits."""
    pictures = [scene(seed) for seed in range(6)]
    own = frame_hashes(pictures)
    rng = numpy_rng(0, "noise")
    noisy = [
        np.clip(one @ LUMA + rng.normal(0, 20, one.shape), 0, 255).astype(np.uint8)
        for one in pictures
    ]
    barred = [np.pad(one[::2, ::2], ((20, 20), (0, 0), (0, 0))) for one in pictures]
    assert np.bitwise_count(own ^ frame_hashes(noisy)).max() <= 10
    assert np.bitwise_count(own ^ frame_hashes(barred)).max() <= 10
    flipped = frame_hashes([np.ascontiguousarray(one[:, ::-1]) for one in pictures])
    assert np.bitwise_count(own ^ flipped).min() > 10
    assert np.median(np.bitwise_count(own[:, None] ^ own[None])[~np.eye(6, dtype=bool)]) > 20


@given(st.integers(0, 63), st.integers(0, 2**64 - 1))
def test_a_flipped_bit_is_a_distance_of_one(bit: int, value: int) -> None:
    assert bits(value, value ^ (1 << bit)) == 1


@pytest.mark.parametrize("level", [0, 128, 255])
def test_flat_pictures_have_no_hash(level: int) -> None:
    """Whatever their grey, and with the noise of a camera."""
    noise = numpy_rng(0, "flat").normal(0, 3, (96, 160))
    flat = np.clip(level + noise, 0, 255).astype(np.uint8)
    assert picture_hash(flat) == NO_HASH


def test_a_picture_of_something_has_a_hash() -> None:
    assert picture_hash(grey(1)) != NO_HASH
