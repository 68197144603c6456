"""The similarity network against reference numbers of the published releases."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings

RATES = {"paper": (0.10, 0.03), "wide": (0.34, 0.25)}


def network_of(golden: dict[str, Tensor], rates: str) -> SimilarityNetwork:
    """A network with the reference weights under the project's names."""
    spatial_rate, temporal_rate = RATES[rates]
    network = SimilarityNetwork(
        NetworkSettings(spatial_rate=spatial_rate, temporal_rate=temporal_rate), dims=48
    )
    names = {
        name: name.replace("comparator.", "comparator_module.").replace("output.", "fconv.")
        for name in network.state_dict()
    }
    network.load_state_dict(
        {own: golden[f"weight/{published}"] for own, published in names.items()}
    )
    return network.eval()


@pytest.mark.parametrize("rates", RATES)
def test_compare_matches_the_release(golden: dict[str, Tensor], rates: str) -> None:
    """Every stage from attention to video similarity equals the release's."""
    network = network_of(golden, rates)
    query = network.embed(golden["query"])
    similarities = network.compare(query[None], network.embed(golden["target"])[None])
    stages = {
        "query_indexed": query,
        "frame_similarity": similarities.frame[0, 0],
        "refined_similarity": similarities.refined[0, 0],
        "video_similarity": similarities.video[0, 0],
    }
    for name, value in stages.items():
        assert_close(value, golden[f"{rates}/{name}"], rtol=1e-4, atol=1e-5)


def test_compare_matches_the_release_on_a_batch(golden: dict[str, Tensor]) -> None:
    """All pairs of a training batch: frame similarities, rescaled video similarities and the
    regulariser."""
    network = network_of(golden, "paper")
    clips = network.embed(golden["batch"])
    similarities = network.compare(clips, clips)
    assert_close(similarities.frame, golden["batch_out/frame"], rtol=1e-4, atol=1e-5)
    assert_close(similarities.video / 2 + 0.5, golden["batch_out/video"], rtol=1e-4, atol=1e-5)
    assert_close(similarities.regularization, golden["batch_out/reg"], rtol=1e-4, atol=1e-5)
    assert not torch.isnan(similarities.video).any()
