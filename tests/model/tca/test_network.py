"""TCA's network against its equations at other seeds and shapes, and the laws that it keeps."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.model.family import video_vectors
from hapvr.model.settings import TcaSettings
from hapvr.model.tca import ContextNetwork
from hapvr.seeding import torch_rng

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def build(dims: int = 24, seed: int = 0, **settings: Any) -> ContextNetwork:
    """A network whose biases, gains and layers all differ."""
    settings = {"heads": 4, "feedforward": 16, "dropout": 0.0} | settings
    torch.manual_seed(seed)
    network = ContextNetwork(TcaSettings.model_validate(settings), dims=dims)
    rng = torch_rng(seed, "changes")
    with torch.no_grad():
        for parameter in network.transformer_encoder.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=rng)

    return network.eval()


def videos(
    dims: int = 24, *, lengths: tuple[int, ...] = (7, 1, 4, 12), regions: int = 1, seed: int = 0
) -> list[Tensor]:
    """Unit features [T, R, D]."""
    rng = torch_rng(seed, "videos")
    return [
        F.normalize(torch.randn(length, regions, dims, generator=rng), dim=-1) for length in lengths
    ]


def padded(clips: list[Tensor]) -> tuple[Tensor, Tensor]:
    """[N, T, R, D] with noise as padding, and the mask."""
    size = max(map(len, clips))
    rng = torch_rng("padding")
    rows = [
        torch.cat([clip, torch.randn(size - len(clip), *clip.shape[1:], generator=rng)])
        for clip in clips
    ]
    return torch.stack(rows), torch.arange(size) < torch.tensor([len(clip) for clip in clips])[
        :, None
    ]


@pytest.mark.parametrize("level", ["video", "frame"])
def test_order_of_frames_and_padding_change_nothing(level: str) -> None:
    """No position is encoded, and padding is never attended to, whatever it holds and however much
    there is."""
    network = build(level=level)
    clips = videos()
    features, mask = padded(clips)
    with torch.no_grad():
        alone = [network.embed(clip) for clip in clips]
        together = network.embed(features, mask=mask)
        shuffled = network.embed(clips[3][torch.randperm(12, generator=torch_rng("order"))])

    for clip, embedding, row in zip(clips, alone, together, strict=True):
        torch.testing.assert_close(row[: len(clip)], embedding, **CLOSE)
    torch.testing.assert_close(
        video_vectors(shuffled[None, :, 0]), video_vectors(alone[3][None, :, 0]), **CLOSE
    )
    for embedding in alone:
        torch.testing.assert_close(
            network.compare(embedding[None], embedding[None]).video, torch.ones(1, 1), **CLOSE
        )
        matrix = network.frame_similarity(embedding, alone[0])
        assert matrix.shape == (len(embedding), len(alone[0]))
        torch.testing.assert_close(
            network.self_similarity(embedding), torch.ones(len(embedding)), **CLOSE
        )
