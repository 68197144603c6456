"""What is drawn of a batch."""

from __future__ import annotations

import torch

from hapvr.train.plots import hardest_negatives, similarity_figure
from hapvr.train.report import BatchReport


def report() -> BatchReport:
    """Two videos with two views each; similarities by hand."""
    similarity = torch.tensor([[1.0, 0.9, 0.2, 0.1], [0.8, 1.0, 0.3, 0.0], [0.2, 0.7, 1.0, 0.9], [0.1, -0.5, 0.9, 1.0]])
    video = torch.tensor([0, 0, 1, 1])
    labels = torch.where(video[:, None] == video[None], 1, -1).to(torch.int8)
    return BatchReport(similarity, labels, ("a", "a", "b", "b"), torch.tensor([0, 3, 1, 2]))


def test_hardest_negatives_by_hand() -> None:
    """Each pair of different videos once, by the larger of its two similarities; positives never."""
    assert hardest_negatives(report()).splitlines() == [
        "similarity,video,view,other_video,other_view",
        "0.7000,a,3,b,1",
        "0.2000,a,0,b,1",
        "0.1000,a,0,b,2",
        "0.0000,a,3,b,2",
    ]
    assert len(hardest_negatives(report(), count=1).splitlines()) == 2


def test_similarity_figure_shows_the_matrix() -> None:
    """The heat map holds the similarities on the scale from -1 to 1, and a mark for each positive."""
    axes = similarity_figure(report()).axes[0]
    (image,) = axes.get_images()
    assert image.get_array().tolist() == report().similarity.tolist()
    assert image.get_clim() == (-1, 1)
    assert len(axes.collections[0].get_offsets()) == 8
