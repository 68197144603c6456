"""VVS against its definition at other seeds and shapes, and the laws of its parts."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from hapvr.model.settings import SaliencySettings, VvsSettings
from hapvr.model.similarity import frame_similarity
from hapvr.model.vvs import TemporalSaliency, VvsNetwork, diagonal_cells

DIMS = 7
POOLED_DIMS = 11


def network_of(seed: int, **changes: Any) -> VvsNetwork:
    """A small float64 network without dropout, whose every weight and statistic was drawn, in
    evaluation mode."""
    values = {
        "distractor": {"hidden": (6, 5), "dropout": 0.0},
        "saliency": {"width": 4, "dropout": 0.0},
    }
    generator = torch.Generator().manual_seed(seed)
    settings = VvsSettings.model_validate(values | changes)
    torch.manual_seed(seed)
    network = VvsNetwork(settings, dims=DIMS, extras_dims=POOLED_DIMS).double()
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if name.endswith("running_var"):
                value.uniform_(0.5, 1.5, generator=generator)
            elif value.is_floating_point():
                value.add_(torch.randn(value.shape, generator=generator, dtype=value.dtype) * 0.2)

        if (
            network.topic is not None
            and network.topic.settings.refine
            and network.topic.settings.hierarchy
        ):
            network.topic.join.weight.mul_(1000)

    return network.eval()


def clips(seed: int, *shape: int) -> Tensor:
    """Unit vectors of that shape, float64."""
    return F.normalize(
        torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64),
        dim=-1,
    )


def vector(network: VvsNetwork, regions: Tensor, pooled: Tensor | None) -> Tensor:
    return F.normalize(network.frame_vectors(regions, pooled).double().sum(0), dim=-1)


def attended(layer: nn.TransformerEncoderLayer, states: Tensor) -> Tensor:
    """What an encoder layer gives for the frames of one video [T, d], head by head."""
    attention = layer.self_attn
    query, key, value = F.linear(states, attention.in_proj_weight, attention.in_proj_bias).chunk(
        3, dim=-1
    )
    heads = []
    for q, k, v in zip(
        query.chunk(8, dim=-1), key.chunk(8, dim=-1), value.chunk(8, dim=-1), strict=True
    ):
        heads.append((q @ k.T / q.shape[1] ** 0.5).softmax(-1) @ v)

    mixed = layer.norm1(states + attention.out_proj(torch.cat(heads, dim=-1)))
    return layer.norm2(mixed + layer.linear2(torch.relu(layer.linear1(mixed))))


@pytest.mark.parametrize(
    ("attention", "group"),
    [
        pytest.param("video", 7, id="all frames of the video, as the paper"),
        pytest.param("frame", 1, id="each frame alone, as the release"),
    ],
)
def test_saliency_attends_to_what_the_setting_says(
    attention: Literal["video", "frame"], group: int
) -> None:
    torch.manual_seed(3)
    settings = SaliencySettings(width=4, attention=attention, temperature=2.0)
    saliency = TemporalSaliency(settings).double().eval()
    with torch.no_grad():
        for weight in saliency.encoder.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)

        states = torch.randn(7, 16, dtype=torch.float64)
        parts = [attended(saliency.encoder, part) for part in states.split(group)]
        weights = saliency.weights_of_states(states)
        assert_close(weights, torch.sigmoid(torch.cat(parts).mean(-1) / 2.0))


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 30, 301])
def test_cells_around_the_diagonal_are_enough(frames: int) -> None:
    """The linear-time weights are those of the whole map, at the edges and where chunks of frames
    meet."""
    settings = SaliencySettings.model_validate({"width": 4})
    torch.manual_seed(frames)
    saliency = TemporalSaliency(settings).eval()
    with torch.no_grad():
        for name, value in saliency.state_dict().items():
            if value.is_floating_point():
                value.copy_(
                    torch.rand_like(value) + 0.1
                    if name.endswith("var")
                    else torch.randn_like(value)
                )

        values = clips(frames, frames, 4, DIMS).float()
        whole = saliency(frame_similarity(values[None], values[None], rate=0)[0])[0]
        order = torch.arange(frames)
        parts = [
            diagonal_cells(values, order, i, min(i + 128, frames)) for i in range(0, frames, 128)
        ]
        linear = saliency.weights_of_states(torch.cat([saliency.windows(cells) for cells in parts]))

    assert_close(linear, whole, rtol=1e-5, atol=1e-5)


def test_without_any_module_the_vector_is_the_mean_of_all_frames() -> None:
    names = ("distractor_discrimination", "temporal_saliency", "topic_guidance")
    network = network_of(7, **dict.fromkeys(names, False)).float()
    regions = clips(1, 6, 3, DIMS).float()
    assert_close(vector(network, regions, None).float(), F.normalize(regions.mean((0, 1)), dim=-1))


def test_refused_frames_add_nothing() -> None:
    """Frames below the threshold are 0 and change no other frame; where all are refused, all are
    kept."""
    network = network_of(8, temporal_saliency=False, topic_guidance=False).float()
    regions = clips(3, 12, 3, DIMS).float()
    pooled = clips(4, 12, POOLED_DIMS).float()
    with torch.no_grad():
        logits = network.distractor(pooled)
        network.distractor.layer3.bias -= logits.median()
        kept = network.distractor(pooled) > 0

    vectors = network.frame_vectors(regions, pooled)
    assert 4 <= int(kept.sum()) < 12
    assert not vectors[~kept].any()
    assert torch.equal(vectors[kept], network.frame_vectors(regions[kept], pooled[kept]))
    with torch.no_grad():
        network.distractor.layer3.bias -= 1000
    assert bool(network.frame_vectors(regions, pooled).abs().amax(-1).gt(0).all())


def test_a_random_initial_state_gives_a_video_one_vector() -> None:
    """The row "Rand." of VVS Table 6: numbers that are new in training, and the same afterwards."""
    network = network_of(
        3,
        distractor_discrimination=False,
        temporal_saliency=False,
        topic={"initial": "random"},
    )
    assert network.topic is not None
    means = clips(3, 2, 8, 1, 16).squeeze(2)
    network.eval()
    assert_close(network.topic(means), network.topic(means))
    network.train()
    assert not torch.equal(network.topic(means), network.topic(means))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_embeddings_are_of_single_precision(dtype: torch.dtype) -> None:
    """Whatever the precision of the features is."""
    network = network_of(3, distractor_discrimination=False).float()
    embedded = network.embed(clips(5, 2, 6, 9, DIMS).to(dtype))
    assert embedded.dtype == torch.float32
    assert embedded.shape == (2, 6, 1, DIMS)
