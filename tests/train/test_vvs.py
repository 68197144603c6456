"""How VVS trains: which clips and frames meet, that it learns, and that it can go on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from hapvr.errors import DataError
from hapvr.model.checkpoint import build_network, load_network
from hapvr.model.settings import VvsSettings
from hapvr.model.vvs import VvsNetwork
from hapvr.steps.project import Project
from hapvr.train.batch import Batch
from hapvr.train.run_folder import list_checkpoints, read_history
from hapvr.train.vvs import (
    SuppressionTraining,
    draw_distractors,
    easy_frames,
    hardest_negatives,
    inserted,
    scattered_source,
)
from tests.train.runs import cached_views, run, same_weights, with_train, without_times

SMALL = VvsSettings.model_validate({"distractor": {"hidden": (16, 8)}, "saliency": {"width": 8}})


def test_easy_frames_are_those_of_small_magnitude() -> None:
    """Below an absolute limit, or a part of all frames; the smallest one where there is none."""
    magnitude = torch.tensor([[30.0, 50.0, 39.9, 40.0], [80.0, 20.0, 60.0, 70.0]])
    easy = easy_frames(magnitude, max_magnitude=40)
    assert easy.tolist() == [[True, False, True, False], [False, True, False, False]]
    assert easy_frames(magnitude, max_magnitude=None).nonzero().tolist() == [[1, 1]]
    assert easy_frames(magnitude, max_magnitude=5).nonzero().tolist() == [[1, 1]]
    assert easy_frames(torch.ones(2, 4), max_magnitude=None).all()


@pytest.mark.parametrize(
    ("places", "shown"),
    [
        pytest.param([], [0, 1, 2], id="none"),
        pytest.param([0, 3], [-1, 0, 1, -1, 2], id="before and between"),
        pytest.param([3, 4], [0, 1, 2, -1, -1], id="behind the last"),
    ],
)
def test_scattered_frames_stand_between_those_of_the_clip(
    places: list[int], shown: list[int]
) -> None:
    """The clip keeps its order, each insertion has its own frame, and a label says which it is."""
    source = scattered_source(3, places)
    assert source.tolist() == shown
    clip = torch.tensor([[10, 11, 12]])
    easy = torch.arange(90, 90 + len(places))[None]
    expected = iter(easy[0].tolist())
    wanted = [next(expected) if frame < 0 else 10 + frame for frame in shown]
    assert inserted(clip, easy, source)[0].tolist() == wanted
    labels = inserted(torch.ones_like(clip), torch.zeros((), dtype=torch.int64), source)
    assert labels[0].tolist() == [int(frame >= 0) for frame in shown]


def test_distractors_are_of_other_videos() -> None:
    """They are easy frames of negatives; where negatives have none, of any clip. The draw is a
    function of its seed."""
    easy = torch.zeros(4, 5, dtype=torch.bool)
    easy[0, 1] = easy[2, 3] = easy[3, 0] = True
    labels = torch.tensor([[1, 1, -1, -1], [-1, -1, 1, 1], [1, 1, 1, 1]], dtype=torch.int8)
    draws = [draw_distractors(easy, labels, parts=(1, "x", number)) for number in range(40)]
    assert [set(row) for row in torch.cat(draws, dim=1).tolist()] == [{13, 15}, {1}, {1, 13, 15}]
    assert torch.equal(draws[2], draw_distractors(easy, labels, parts=(1, "x", 2)))


def test_negatives_share_no_video() -> None:
    """The nearest clip of another video is the negative; an anchor whose batch has none is left
    out."""
    vectors = F.normalize(torch.tensor([[1.0, 0], [1, 0.1], [1, 0.2], [0, 1]]), dim=-1)
    labels = torch.tensor([[1, 1, -1, -1], [1, 1, 1, 1]], dtype=torch.int8)
    negative, has_negative = hardest_negatives(vectors[:2], vectors, labels)
    assert int(negative[0]) == 2
    assert has_negative.tolist() == [True, False]


def batch_of(
    project: Project, settings: VvsSettings = SMALL, number: int = 0
) -> tuple[SuppressionTraining, Batch]:
    views = cached_views(project, network=settings)
    network = build_network(settings, dims=32, seed=1, extras_dims=views.extras_dims)
    training = SuppressionTraining(network, with_train(project, network=settings).train)
    batch = views[number]
    return training.train(), replace(batch, regions=batch.regions.float())


@pytest.mark.slow
def test_resumed_training_ends_as_the_uninterrupted_one(
    pooled_project: Project, tmp_path: Path
) -> None:
    """Weights, running statistics and history are equal bit for bit."""
    config = with_train(pooled_project, network=SMALL)
    run(pooled_project, tmp_path / "whole", config)
    run(pooled_project, tmp_path / "cut", config)
    list_checkpoints(tmp_path / "cut" / "checkpoints")[-1].unlink()
    assert run(pooled_project, tmp_path / "cut", config).first_step == 4
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    assert without_times(read_history(tmp_path / "whole")) == without_times(
        read_history(tmp_path / "cut")
    )
    network, _ = load_network(tmp_path / "whole" / "network")
    assert isinstance(network, VvsNetwork)
    assert network.extras_dims == 368
    assert int(network.state_dict()["saliency.bn1.num_batches_tracked"]) == 8


def test_views_without_pooled_vectors_are_refused(small_project: Project, tmp_path: Path) -> None:
    """The error names the setting; without distractor discrimination the same views train."""
    with pytest.raises(DataError, match=r"features\.pooled: true"):
        run(small_project, tmp_path / "a", with_train(small_project, network=SMALL, steps=2))
    without = SMALL.model_copy(update={"distractor_discrimination": False})
    assert (
        run(
            small_project, tmp_path / "b", with_train(small_project, network=without, steps=2)
        ).steps
        == 2
    )
