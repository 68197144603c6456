"""The network: padding, batching, symmetry, variants, precision and bad input."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from hapvr.model import network as network_module
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng

DIMS = 16

VARIANTS: dict[str, dict[str, Any]] = {
    "hap-vr": {},
    "wide": {"spatial_rate": 0.34, "temporal_rate": 0.5},
    "visil_sym": {
        "spatial_rate": 0.0,
        "temporal_rate": 0.0,
        "attention_form": "cosine",
        "symmetric_chamfer": True,
    },
    "visil_v": {
        "spatial_rate": 0.0,
        "temporal_rate": 0.0,
        "attention_form": "linear",
        "padding_mode": "replicate",
    },
    "release": {"min_frames": 8},
    "dns_binary": {
        "spatial_rate": 0.0,
        "temporal_rate": 0.0,
        "attention": False,
        "binary_bits": 24,
    },
}

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def build(variant: str = "hap-vr") -> SimilarityNetwork:
    """A small network with weights large enough that the comparator's output matters."""
    network = SimilarityNetwork(
        NetworkSettings(**VARIANTS[variant]), dims=DIMS, generator=torch_rng("network")
    )
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith("comparator"):
                parameter.mul_(2).add_(0.01)

    return network.eval()


def clips(name: str, *, num_videos: int, num_frames: int) -> Tensor:
    """Unit regions [N, T, 9, DIMS] that look alike within a video."""
    generator = torch_rng("clips", name)
    centre = torch.randn(num_videos, 1, 1, DIMS, generator=generator)
    return F.normalize(
        centre + torch.randn(num_videos, num_frames, 9, DIMS, generator=generator), dim=-1
    )


@every_variant
@given(length=st.integers(1, 13), other=st.integers(1, 13), extra=st.integers(1, 5))
def test_padding_changes_no_score(variant: str, length: int, other: int, extra: int) -> None:
    """Frames behind a mask may hold anything, however short or odd the clip, on either side."""
    network = build(variant)
    query = network.embed(clips("query", num_videos=2, num_frames=length))
    reference = network.embed(clips("reference", num_videos=3, num_frames=other))
    longer_query = F.pad(query, (0, 0, 0, 0, 0, extra), value=torch.nan)
    longer_reference = F.pad(reference, (0, 0, 0, 0, 0, 2), value=7.0)
    actual = network.compare(
        longer_query,
        longer_reference,
        query_mask=(torch.arange(length + extra) < length).expand(2, -1),
        reference_mask=(torch.arange(other + 2) < other).expand(3, -1),
    )
    expected = network.compare(query, reference)
    assert_close(actual.video, expected.video, rtol=1e-4, atol=1e-5)
    assert_close(actual.regularization, expected.regularization, rtol=1e-4, atol=1e-4)
    assert_close(actual.frame[:, :, :length, :other], expected.frame)
    assert not actual.frame[:, :, length:].any()


@pytest.mark.parametrize("masked", [False, True])
def test_recomputing_activations_changes_nothing(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of pairs whose activations are made again give the same scores and gradients."""
    mask = (torch.arange(8) < torch.tensor([[8], [5], [3]])) if masked else None
    scores_and_gradients = []
    for kept, chunk in ((2**30, 2**30), (0, 130)):
        monkeypatch.setitem(network_module.MAX_KEPT_ELEMENTS, "cpu", kept)
        monkeypatch.setitem(network_module.MAX_COMPARATOR_ELEMENTS, "cpu", chunk)
        network = build()
        embedded = network.embed(clips("chunks", num_videos=3, num_frames=8))
        output = network.compare(embedded, embedded, query_mask=mask, reference_mask=mask)
        (output.video.sum() + output.regularization).backward()
        scores_and_gradients.append(
            (output.video.detach(), [parameter.grad for parameter in network.parameters()])
        )

    assert_close(scores_and_gradients[0], scores_and_gradients[1], rtol=1e-4, atol=1e-5)


def test_regularization_sums_the_overshoot() -> None:
    """How far the comparator's raw output leaves [-1, 1], over all pairs and entries, in both
    directions."""
    network = build()
    with torch.no_grad():
        network.comparator.output.weight.zero_()
        network.comparator.output.bias.fill_(-1.5)

    embedded = network.embed(clips("overshoot", num_videos=2, num_frames=8))
    similarities = network.compare(embedded, embedded)
    assert similarities.regularization.item() == pytest.approx(4 * 4 * 0.5)
    assert similarities.video.tolist() == [[-1.0, -1.0], [-1.0, -1.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_score_in_float32(dtype: torch.dtype) -> None:
    """Features cached in half precision are computed in the weights' precision."""
    network = build()
    features = clips("half", num_videos=3, num_frames=8).to(dtype)
    actual = network.compare(network.embed(features), network.embed(features))
    assert actual.video.dtype == actual.frame.dtype == torch.float32
    wanted = network.compare(network.embed(features.float()), network.embed(features.float()))
    assert_close(actual.video, wanted.video)
