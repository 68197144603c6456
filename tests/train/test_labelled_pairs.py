"""Batches of labelled pairs: what a clip shows, what is compared with what, and that a training
goes on where it stopped."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.config import VIEW_STEPS, Config, TrainSource
from hapvr.losses.settings import ContrastSettings
from hapvr.model.checkpoint import build_network
from hapvr.model.family import split_extras, video_vectors
from hapvr.model.settings import TcaSettings, VvsSettings
from hapvr.steps.project import Project
from hapvr.steps.training_data import read_labels
from hapvr.train.batch import Batch
from hapvr.train.families import build_training
from hapvr.train.pair_labels import CopiedSegment, PairLabels
from hapvr.train.run_folder import list_checkpoints, read_history
from hapvr.train.settings import PairsConfig
from hapvr.train.sources import SOURCES
from hapvr.train.sources.labelled_pairs import LabelledPairs
from hapvr.train.sources.mining import nearest_distractors
from hapvr.train.tca import ContrastTraining
from hapvr.train.vvs import SuppressionTraining
from tests.train.runs import inputs_of, run, same_weights, with_train, without_times
from tests.train.written_features import DIMS, SHARDS, VIDEOS, written_project

SMALL_VVS = VvsSettings.model_validate(
    {
        "distractor": {"hidden": (16, 8)},
        "saliency": {"width": 8, "attention": "video", "label_rule": "plain"},
        "injection": "scattered",
    }
)
PAIRS = PairsConfig(path=Path("pairs.csv"), negatives_per_pair=1)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return written_project(tmp_path_factory.mktemp("written"))


def write_labels(folder: Path) -> None:
    """Two pairs of the first three videos; the others are distractors."""
    first, second, third, *others = VIDEOS
    segments = [(first, second, 1.0, 3.0, 2.0, 6.0), (second, third, 0.0, 6.0, 0.0, 6.0)]
    names = list(CopiedSegment.model_fields)
    copies = tuple(CopiedSegment(**dict(zip(names, one, strict=True))) for one in segments)
    PairLabels(copies=copies, distractors=tuple(others)).write(folder)


def labelled(project: Project, pairs: PairsConfig = PAIRS, **changes: Any) -> Config:
    """The settings of a training on labelled pairs."""
    return with_train(project, source="labelled_pairs", pairs=pairs, batch_videos=2, **changes)


def source_of(project: Project, config: Config, folder: Path) -> LabelledPairs:
    write_labels(folder)
    return LabelledPairs(inputs_of(project, config, folder))


def floats(batch: Batch) -> Batch:
    return replace(batch, regions=batch.regions.float())


def test_each_source_has_a_name_in_configurations() -> None:
    assert set(get_args(TrainSource)) == SOURCES.keys()


@pytest.mark.parametrize(
    ("source", "single_rate"),
    [
        *((source, 0.0) for source in sorted(SOURCES)),
        pytest.param("labelled_pairs", 0.5, id="labelled pairs and single videos"),
    ],
)
def test_the_steps_of_views_are_those_that_the_source_reads(
    project: Project, source: str, single_rate: float
) -> None:
    pairs = PAIRS.model_copy(update={"single_rate": single_rate})
    config = with_train(project, source=source, pairs=pairs)
    read = set(SOURCES[source].reads(config))
    assert config.train.view_steps == read & VIEW_STEPS


@pytest.mark.parametrize(
    ("source", "has_labels"), [("cached_views", False), ("online", False), ("labelled_pairs", True)]
)
def test_a_training_that_goes_on_keeps_the_labels_it_began_with(
    project: Project, tmp_path: Path, source: str, has_labels: bool
) -> None:
    """The file that the configuration names may be gone."""
    write_labels(tmp_path)
    config = with_train(project, source=source, pairs=PAIRS)
    labels = read_labels(replace(project, config=config), list(SHARDS), begun=tmp_path)
    assert (labels == PairLabels.read(tmp_path, VIDEOS)) == has_labels
    assert (labels is None) != has_labels


@pytest.fixture
def with_two_negatives(project: Project, tmp_path: Path) -> LabelledPairs:
    """Both pairs in each batch, with two distractors each."""
    pairs = PAIRS.model_copy(update={"negatives_per_pair": 2})
    return source_of(project, labelled(project, pairs, network=TcaSettings()), tmp_path)


NUMBERS = pytest.mark.parametrize("number", range(4))
"""Of a batch."""


def test_a_source_counts_videos_and_those_it_draws_negatives_from(
    with_two_negatives: LabelledPairs,
) -> None:
    num_distractors = len(VIDEOS) - 3
    assert with_two_negatives.num_videos == 3 + num_distractors
    assert with_two_negatives.num_keys == num_distractors


@NUMBERS
def test_a_batch_is_pairs_each_with_its_negatives(
    with_two_negatives: LabelledPairs, number: int
) -> None:
    """Every pair once in an epoch; negatives are distractors, no two of an item the same."""
    first, second, third, *others = VIDEOS
    batch = with_two_negatives[number]
    items = [batch.video_ids[start : start + 4] for start in (0, 4)]
    assert {item[:2] for item in items} == {(first, second), (second, third)}
    assert {video for item in items for video in item[2:]} <= set(others)
    assert all(len(set(item)) == 4 for item in items)


@NUMBERS
def test_a_batch_says_where_its_anchors_and_negatives_are(
    with_two_negatives: LabelledPairs, number: int
) -> None:
    batch = with_two_negatives[number]
    assert batch.anchor_rows.tolist() == [0, 4]
    assert batch.negative_rows.tolist() == [2, 3, 6, 7]


@NUMBERS
def test_videos_of_a_pair_are_positives_and_distractors_negatives(
    with_two_negatives: LabelledPairs, number: int
) -> None:
    """Of each other; nothing is said of single frames."""
    batch = with_two_negatives[number]
    assert batch.labels[0, 1] == 1
    assert batch.labels[0, 2] == -1
    assert torch.equal(batch.labels, batch.labels.T)
    assert batch.frame_labels is None


@NUMBERS
def test_a_batch_follows_from_its_number(with_two_negatives: LabelledPairs, number: int) -> None:
    batch = with_two_negatives[number]
    assert torch.equal(batch.regions, with_two_negatives[number].regions)
    assert not torch.equal(batch.regions, with_two_negatives[number + 1].regions)


def test_either_video_of_a_pair_may_be_the_anchor(project: Project, tmp_path: Path) -> None:
    """With `swap`, drawn anew each time (ViSiL)."""
    config = labelled(project, PAIRS.model_copy(update={"swap": True}))
    source = source_of(project, config, tmp_path)
    anchors = {source[number].video_ids[0] for number in range(20)}
    assert anchors == set(VIDEOS[:3])


def test_clips_show_the_shared_footage(project: Project, tmp_path: Path) -> None:
    """At least `min_overlap_s` of it in both; a segment that is shorter is left out."""
    pairs = PAIRS.model_copy(update={"min_overlap_s": 2.0})
    source = source_of(project, labelled(project, pairs), tmp_path)
    segment = CopiedSegment(
        query=VIDEOS[0],
        reference=VIDEOS[1],
        query_start_s=0.0,
        query_end_s=2.0,
        reference_start_s=4.0,
        reference_end_s=6.0,
    )
    for number in range(30):
        anchor, positive = source._clips_of_pair(segment, np.random.default_rng(number))
        assert (anchor.start, positive.start) == (0, 2)  # of 6 frames, clips have 4

    only_long = PAIRS.model_copy(update={"min_overlap_s": 3.0})
    source = source_of(project, labelled(project, only_long), tmp_path)
    assert source.batch_items == 1


def batch_of_ten_frames(project: Project, folder: Path, *, repeated: bool) -> Batch:
    """A batch of clips that have six frames, where ten are wanted."""
    views = project.config.views.model_copy(update={"num_frames": 10})
    config = labelled(project, repeat_short_clips=repeated).model_copy(update={"views": views})
    return source_of(project, config, folder)[0]


def test_short_clips_are_padded_with_zeros_that_do_not_count(
    project: Project, tmp_path: Path
) -> None:
    """As TCA does."""
    batch = batch_of_ten_frames(project, tmp_path, repeated=False)
    assert batch.num_frames.tolist() == [6] * 6
    assert not batch.regions[:, 6:].any()
    assert batch.frame_mask[:, :6].all()


def test_short_clips_are_shown_again(project: Project, tmp_path: Path) -> None:
    """As VVS does."""
    batch = batch_of_ten_frames(project, tmp_path, repeated=True)
    assert batch.num_frames is None
    assert torch.equal(batch.regions[:, 6:], batch.regions[:, :4])


def test_hard_negatives_are_the_distractors_most_like_an_anchor() -> None:
    """Never the anchor itself."""
    distractors = F.normalize(torch.tensor([[1.0, 0], [1, 1], [0, 1], [-1, 0]]), dim=-1)
    anchors = F.normalize(torch.tensor([[1.0, 0.1], [0.1, 1.0]]), dim=-1)
    negatives = nearest_distractors(anchors, distractors, count=2, own=torch.tensor([-1, 2]))
    assert negatives.tolist() == [[0, 1], [1, 0]]


def test_the_bank_is_the_negatives_of_all_batches_of_the_step(
    project: Project, tmp_path: Path
) -> None:
    """`bank_order: before` (TCA 3.4): anchors of each batch meet the negatives of both, of the
    current weights; `after` meets those of the steps before."""
    contrast = ContrastSettings(
        bank_size=4, batch_negatives=False, bank_order="before", positive_gradients=True
    )
    network_settings = TcaSettings(dropout=0.0)
    changes = {"network": network_settings, "contrast": contrast, "accumulated_batches": 2}
    config = labelled(project, **changes)
    source = source_of(project, config, tmp_path)
    network = build_network(network_settings, dims=source.dims, seed=1)
    training = build_training(
        config.train,
        network,
        num_videos=8,
        batch_videos=2,
        clips_per_item=source.clips_per_item,
    )
    assert isinstance(training, ContrastTraining)
    batches = [floats(source[number]) for number in range(2)]
    training.begin_step(batches, 0)
    wanted = []
    for batch in batches:
        rows = batch.negative_rows
        wanted.append(video_vectors(network.embed(batch.regions[rows])[:, :, 0]).detach())

    torch.testing.assert_close(training.bank.vectors, torch.cat(wanted))
    before = training.bank.vectors.clone()
    total, _ = training(batches[0], 0)
    total.backward()
    assert torch.equal(training.bank.vectors, before)
    assert any(weight.grad.any() for weight in network.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["tca", "vvs", "similarity"])
def test_resumed_training_ends_as_the_uninterrupted_one(
    project: Project, tmp_path: Path, family: str
) -> None:
    """Weights and history are equal bit for bit, also where a step is of two batches."""
    changes: dict[str, Any] = {"accumulated_batches": 2}
    pairs = PAIRS
    if family == "tca":
        contrast = ContrastSettings(bank_size=4, batch_negatives=False, bank_order="before")
        changes |= {"network": TcaSettings(), "contrast": contrast}
    elif family == "vvs":
        changes |= {"network": SMALL_VVS}
        pairs = PAIRS.model_copy(update={"negatives": "hard", "single_rate": 0.5})
    else:
        objective = project.config.train.objective.model_copy(update={"frame_ap_weight": 0.0})
        changes |= {"objective": objective, "repeat_short_clips": False}

    config = labelled(project, pairs, **changes)
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
        write_labels(tmp_path / name)
        run(project, tmp_path / name, config)

    list_checkpoints(tmp_path / "cut" / "checkpoints")[-1].unlink()
    assert run(project, tmp_path / "cut", config).first_step == 4
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    whole = read_history(tmp_path / "whole")
    cut = read_history(tmp_path / "cut")
    assert without_times(whole) == without_times(cut)


@dataclass(frozen=True)
class Anchors:
    """The anchors of a batch, and what a training inserts into them (VVS, A.2)."""

    batch: Batch
    regions: Tensor
    pooled: Tensor | None
    labels: Tensor | None
    """1: a frame of the clip's own, 0: an inserted one"""
    terms: dict[str, Tensor]
    total: Tensor
    extras_dims: int


@pytest.fixture(scope="module")
def suppressed(project: Project, tmp_path_factory: pytest.TempPathFactory) -> list[Anchors]:
    """Six batches; every other one is of single videos, which are distractors themselves."""
    pairs = PAIRS.model_copy(update={"negatives": "hard", "single_rate": 0.5})
    config = labelled(project, pairs, network=SMALL_VVS)
    source = source_of(project, config, tmp_path_factory.mktemp("suppressed"))
    network = build_network(SMALL_VVS, dims=DIMS, seed=1, extras_dims=source.extras_dims)
    training = SuppressionTraining(network, config.train)
    batches = []
    for number in range(6):
        batch = floats(source[number])
        regions, pooled, labels = training._anchor_clips(batch, number)
        total, terms = training.train()(batch, number)
        batches.append(Anchors(batch, regions, pooled, labels, terms, total, source.extras_dims))

    return batches


OF_PAIRS = pytest.mark.parametrize("number", [0, 2, 4])
OF_SINGLE_VIDEOS = pytest.mark.parametrize("number", [1, 3, 5])
"""Numbers of batches."""


@OF_SINGLE_VIDEOS
def test_a_single_video_is_a_distractor_beside_another_one(
    suppressed: list[Anchors], number: int
) -> None:
    first, copy, another, *_ = suppressed[number].batch.video_ids
    assert first in VIDEOS[3:]
    assert copy == first
    assert another != first


@OF_SINGLE_VIDEOS
def test_into_a_distractor_no_frames_are_inserted(suppressed: list[Anchors], number: int) -> None:
    assert suppressed[number].pooled is None
    assert suppressed[number].labels is None


@OF_PAIRS
def test_at_most_two_frames_are_inserted_into_the_clip_of_a_pair(
    suppressed: list[Anchors], number: int
) -> None:
    """It has four of its own."""
    anchors = suppressed[number]
    assert anchors.batch.video_ids[0] not in VIDEOS[3:]
    assert anchors.labels is not None
    assert anchors.regions.shape[1] - 4 == int((anchors.labels[0] == 0).sum()) <= 2


def test_frames_are_inserted_into_some_clip(suppressed: list[Anchors]) -> None:
    assert any((anchors.labels == 0).any() for anchors in suppressed if anchors.labels is not None)


@OF_PAIRS
def test_inserted_frames_are_easy_ones_of_distractors(
    suppressed: list[Anchors], number: int
) -> None:
    """They are labelled where they stand, anywhere between the clip's own in their order."""
    anchors = suppressed[number]
    batch = anchors.batch
    assert anchors.labels is not None
    assert batch.easy_frames is not None
    easy = split_extras(batch.easy_frames.float(), extras_dims=anchors.extras_dims)[0]
    own = split_extras(batch.regions, extras_dims=anchors.extras_dims)[0]
    count = int((anchors.labels[0] == 0).sum())
    inserted = anchors.regions[anchors.labels == 0].view(2, count, 9, DIMS)
    assert torch.equal(inserted, easy[:, :count])
    kept = own[batch.anchor_rows]
    assert torch.equal(anchors.regions[anchors.labels == 1].view(kept.shape), kept)


@OF_PAIRS
def test_a_batch_of_pairs_has_every_term_of_the_loss(
    suppressed: list[Anchors], number: int
) -> None:
    terms = suppressed[number].terms
    assert terms.keys() == {"video", "frame", "saliency", "distractor"}
    assert torch.isfinite(suppressed[number].total)
