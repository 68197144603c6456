"""Scores of many videos of different lengths against the network, one pair at a time."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from hapvr.model import family, network
from hapvr.model.network import SimilarityNetwork, refine_in_strips
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng

DIMS = 16
REGIONS = 9
VARIANTS = {
    "hapvr": {},
    "wide": {"spatial_rate": 0.34, "temporal_rate": 0.25},
    "frozen features": {"attention": False, "comparator": False},
    "symmetric chamfer": {"symmetric_chamfer": True},
    "visil": {"padding_mode": "replicate"},
    "release": {"min_frames": 8},
}


def make_videos(lengths, *, name="videos"):
    rng = torch_rng(0, name)
    return [
        torch.nn.functional.normalize(torch.randn(one, REGIONS, DIMS, generator=rng), dim=-1)
        for one in lengths
    ]


def make_network(**options):
    return SimilarityNetwork(
        NetworkSettings(**options), dims=DIMS, generator=torch_rng(1, "network")
    ).eval()


def one_by_one(network, queries, references):
    with torch.inference_mode():
        rows = [
            [network.compare(q[None], r[None]).video[0, 0] for r in references] for q in queries
        ]
        return torch.tensor(rows)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_scores_of_many_videos_equal_one_pair_at_a_time(variant):
    """Lengths from one frame on, score as each pair does alone, in every variant."""
    network = make_network(**VARIANTS[variant])
    queries = [network.embed(video) for video in make_videos([1, 7, 28, 13], name="queries")]
    references = [
        network.embed(video) for video in make_videos([33, 2, 28, 28, 5, 3, 61], name="references")
    ]
    got = network.score_videos(queries, references)
    torch.testing.assert_close(got, one_by_one(network, queries, references), rtol=0, atol=1e-5)


@pytest.mark.parametrize("padding_mode", ["zeros", "replicate"])
@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.sampled_from([1, 50, 700, 10**6]),
    st.sampled_from([100, 10**6]),
)
def test_how_much_is_computed_at_once_changes_no_score(
    padding_mode, query_lengths, reference_lengths, frames, strip
):
    """However many videos are compared together, and in strips or not, the scores are the same."""
    scorer = make_network(temporal_rate=0.2, padding_mode=padding_mode)
    queries = [scorer.embed(video) for video in make_videos(query_lengths)]
    references = [scorer.embed(video) for video in make_videos(reference_lengths)]
    wanted = one_by_one(scorer, queries, references)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(family.GROUP_FRAMES, "cpu", frames)
        patch.setattr(network, "MAX_STRIP_ELEMENTS", strip)
        torch.testing.assert_close(
            scorer.score_videos(queries, references), wanted, rtol=0, atol=1e-5
        )


@pytest.mark.parametrize(("rows", "columns"), [(40, 9), (41, 4), (43, 30), (7, 4), (4, 100)])
@pytest.mark.parametrize("max_elements", [1, 300, 10**6])
@pytest.mark.parametrize("padding_mode", ["zeros", "replicate"])
def test_refine_in_strips_equals_the_comparator(
    rows, columns, max_elements, padding_mode, monkeypatch
):
    """Strips of any height give the comparator's output, rows that pooling drops included."""
    monkeypatch.setattr(network, "MAX_STRIP_ELEMENTS", max_elements)
    comparator = make_network(padding_mode=padding_mode).comparator
    frame = torch.randn(1, rows, columns, generator=torch_rng("frame"))
    with torch.inference_mode():
        got = refine_in_strips(comparator, frame)
        torch.testing.assert_close(got, comparator(frame), rtol=0, atol=1e-5)
