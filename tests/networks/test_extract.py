"""Clips made ahead of the network."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from hapvr.networks.extract import READ_AHEAD, embed_by_networks, read_ahead


def test_read_ahead_keeps_order_and_is_bounded() -> None:
    """Items come as they are, and no more are made than may wait."""
    made: list[int] = []
    waited = threading.Event()

    def items() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            if number == READ_AHEAD + 2:
                waited.set()
            yield number

    ahead = read_ahead(items())
    assert next(ahead) == 0
    assert not waited.wait(0.3)
    assert len(made) <= READ_AHEAD + 2
    assert list(ahead) == list(range(1, 20))


@pytest.mark.parametrize("batch_frames", [1, 3, 100])
def test_embed_by_networks_gives_each_clip_its_own_results(batch_frames: int) -> None:
    """Whatever the batches, clip k has the embeddings of its frames, in order."""
    clips = [(str(count), np.full((count, 3, 2, 2), count, np.uint8)) for count in (1, 5, 2, 7)]
    networks = [lambda frames: frames.mean((1, 2, 3), dtype=np.float32)]
    found = list(embed_by_networks(clips, networks, batch_frames=batch_frames))
    assert [key for key, _ in found] == [key for key, _ in clips]
    for key, (values,) in found:
        assert values.tolist() == [float(key)] * int(key)
