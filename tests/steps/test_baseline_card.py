"""What the card of the untrained baseline says of its network."""

from types import SimpleNamespace
from typing import Any

import pytest

from hapvr.networks.packaged import WeightsIdentity
from hapvr.steps.baseline_card import baseline_card


@pytest.mark.parametrize(
    ("architecture", "num_vectors", "is_whitened"),
    [
        pytest.param("resnet18", 9, True, id="regions"),
        pytest.param("resnet18", 1, True, id="one vector of a frame"),
        pytest.param("sscd", 1, False, id="made for copies"),
    ],
)
def test_vectors_that_are_compared_as_they_are_are_not_called_whitened(
    architecture: str, num_vectors: int, is_whitened: bool
) -> None:
    identity = WeightsIdentity(architecture, "random", "0" * 64)
    encoder: Any = SimpleNamespace(identity=identity, num_vectors=num_vectors)
    card = baseline_card(encoder, {"a.mp4": "0"}, "there are too few videos", None)
    assert ("whitened on the 1 videos" in card) == is_whitened
    assert ("centre-cropped" in card) == is_whitened
