"""Labels of pairs of clips from their source videos."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hapvr.networks.pairs import KnownPairs, positive_pairs, video_pair_labels


def test_video_pair_labels_by_hand() -> None:
    """Clips of one video are positives; a video-in-video clip is a positive of donor and host."""
    found = video_pair_labels([("a",), ("b",), ("a",), ("b", "c"), ("c",)])
    assert found.dtype == torch.int8
    assert found.tolist() == [
        [1, -1, 1, -1, -1],
        [-1, 1, -1, 1, -1],
        [1, -1, 1, -1, -1],
        [-1, 1, -1, 1, 1],
        [-1, -1, -1, 1, 1],
    ]


def test_video_pair_labels_match_the_reference_batch(golden: dict[str, Tensor]) -> None:
    """A batch of three videos in which one strong view was pasted into another."""
    found = video_pair_labels([("a",), ("b",), ("c",), ("a",), ("a", "b"), ("c",)])
    assert torch.equal(found > 0, golden["labels"].bool())


def test_positive_pairs_with_and_without_self() -> None:
    """Row by row, the diagonal only on request."""
    labels = video_pair_labels([("a",), ("b",), ("a",)])
    assert positive_pairs(labels).tolist() == [[0, 2], [2, 0]]
    assert positive_pairs(labels, include_self=True).tolist() == [[0, 0], [0, 2], [1, 1], [2, 0], [2, 2]]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] != pair[1]), max_size=8))
def test_labels_of_known_pairs_against_a_walk(pairs: list[tuple[int, int]]) -> None:
    """1 for a pair, 0 for what a walk over pairs reaches, -1 for the rest."""
    known = KnownPairs([(str(one), str(other)) for one, other in pairs])
    found = video_pair_labels([(str(number),) for number in range(8)], known)
    for start in range(8):
        reached = {start}
        for _ in range(8):
            reached |= {b for a, b in [*pairs, *(pair[::-1] for pair in pairs)] if a in reached}
        for end in range(8):
            paired = start == end or (start, end) in pairs or (end, start) in pairs
            assert found[start, end] == (1 if paired else 0 if end in reached else -1)
