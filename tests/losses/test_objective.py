"""The objective: terms, weights, counts, the self pair, and errors."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hapvr.errors import ConfigError
from hapvr.losses import objective as losses
from hapvr.losses.objective import Objective, infonce, quadlinear_ap, without_self
from hapvr.losses.settings import ObjectiveSettings
from hapvr.model.family import Similarities
from hapvr.networks.backbone import pseudo_labels
from hapvr.networks.settings import PseudoLabelSettings
from hapvr.seeding import torch_rng
from hapvr.train.batch import video_pair_labels

FRAMES = 6


def batch(sources: list[tuple[str, ...]]) -> tuple[Similarities, Tensor, Tensor, Tensor]:
    """Random similarities, video labels, frame labels of all positive pairs with the self pairs,
    and their index."""
    generator = torch_rng("objective", len(sources))
    labels = video_pair_labels(sources)
    pairs = (labels > 0).nonzero()
    teacher = torch.randn(len(sources), FRAMES, 5, generator=generator)
    frame_labels = pseudo_labels(teacher[pairs[:, 0]], teacher[pairs[:, 1]], PseudoLabelSettings())
    shape = (len(sources), len(sources), FRAMES, FRAMES)
    frame = torch.rand(shape, generator=generator) * 2 - 1
    video = (torch.rand(shape[:2], generator=generator) * 2 - 1).requires_grad_()
    frame.requires_grad_()
    similarities = Similarities(
        frame=frame, refined=frame, video=video, regularization=torch.tensor(0.25)
    )
    return similarities, labels, frame_labels, pairs


@pytest.fixture
def views() -> tuple[Similarities, Tensor, Tensor, Tensor]:
    """Two views each of three videos, one of them pasted into another's."""
    return batch([("a",), ("b",), ("c",), ("a",), ("b", "a"), ("c",)])


def test_objective_is_the_weighted_sum_of_eq_15(
    views: tuple[Similarities, Tensor, Tensor, Tensor],
) -> None:
    """6 frame + 4 video + InfoNCE + 3 SSHN + regulariser, on video similarities in [0, 1]."""
    similarities, labels, frame_labels, pairs = views
    total, terms = Objective(ObjectiveSettings())(similarities, labels, frame_labels, pairs)
    kept = pairs[:, 0] != pairs[:, 1]
    rows, columns = pairs[kept].unbind(1)
    video = similarities.video / 2 + 0.5
    expected = {
        "frame_ap": quadlinear_ap(similarities.frame[rows, columns], frame_labels[kept], rho=5.0),
        "video_ap": quadlinear_ap(video, without_self(labels)),
        "infonce": infonce(video, without_self(labels), temperature=0.03),
        "hard_negative": losses.hard_negative(video, labels),
        "self_similarity": losses.self_similarity(video, labels),
        "regularization": similarities.regularization,
    }
    assert list(terms) == list(expected)
    for name, value in expected.items():
        assert_close(terms[name], value)
    weights = (6, 4, 1, 3, 3, 1)
    assert_close(total, sum(w * value for w, value in zip(weights, expected.values(), strict=True)))


def test_gradient_reaches_positive_frame_pairs_only(
    views: tuple[Similarities, Tensor, Tensor, Tensor],
) -> None:
    """Frame similarities of negative video pairs, and of a clip with itself, are not ranked."""
    similarities, labels, frame_labels, pairs = views
    Objective(ObjectiveSettings())(similarities, labels, frame_labels, pairs)[0].backward()
    touched = similarities.frame.grad.flatten(2).any(-1)
    assert torch.equal(touched, without_self(labels) > 0)
    assert similarities.video.grad.any()


def test_objective_leaves_out_terms_of_weight_zero(
    views: tuple[Similarities, Tensor, Tensor, Tensor],
) -> None:
    """S2VS is the base loss without ranking."""
    _, terms = Objective(ObjectiveSettings(frame_ap_weight=0, video_ap_weight=0))(*views)
    assert list(terms) == ["infonce", "hard_negative", "self_similarity", "regularization"]


@pytest.mark.parametrize(
    ("setting", "term"),
    [("self_similarity_weight", "self_similarity"), ("hard_negative_weight", "hard_negative")],
)
def test_the_halves_of_sshn_have_weights_of_their_own(
    views: tuple[Similarities, Tensor, Tensor, Tensor], setting: str, term: str
) -> None:
    """S2VS Table 9 trains with either half alone."""
    whole, terms = Objective(ObjectiveSettings())(*views)
    without, others = Objective(ObjectiveSettings(**{setting: 0}))(*views)
    assert term not in others
    assert_close(whole - without, 3 * terms[term])


def test_without_positives_the_ranking_terms_are_zero() -> None:
    """Where no view has another of its video, total and gradient are numbers."""
    similarities, *labels = batch([("a",), ("b",), ("c",)])
    total, terms = Objective(ObjectiveSettings())(similarities, *labels)
    total.backward()
    assert terms["frame_ap"].item() == terms["video_ap"].item() == terms["infonce"].item() == 0
    assert torch.isfinite(total)
    assert torch.isfinite(similarities.video.grad).all()


def test_one_list_for_all_queries(views: tuple[Similarities, Tensor, Tensor, Tensor]) -> None:
    """With across_queries a query whose scores are all higher costs, though its own list is in
    order."""
    similarities, labels, frame_labels, pairs = views
    ordered = torch.where(labels > 0, 0.6, -0.6)
    shifted = ordered.clone()
    shifted[0] += 1.3  # each of its negatives is now above the positives of the others
    terms = {}
    for across in (False, True):
        objective = Objective(ObjectiveSettings(across_queries=across))
        for name, video in (("ordered", ordered), ("shifted", shifted)):
            changed = Similarities(
                similarities.frame, similarities.refined, video, similarities.regularization
            )
            loss_terms = objective(changed, labels, frame_labels, pairs)[1]
            terms[across, name] = (
                float(loss_terms["video_ap"].detach()),
                float(loss_terms["infonce"].detach()),
            )

    assert terms[False, "shifted"] == pytest.approx(terms[False, "ordered"], abs=1e-5)
    assert terms[True, "shifted"][0] > terms[True, "ordered"][0] + 0.1
    assert terms[True, "shifted"][1] > terms[True, "ordered"][1] + 0.1


def test_terms_across_queries_are_those_of_one_flat_list(
    views: tuple[Similarities, Tensor, Tensor, Tensor],
) -> None:
    similarities, labels, frame_labels, pairs = views
    video = similarities.video / 2 + 0.5
    others = without_self(labels)
    loss_terms = Objective(ObjectiveSettings(across_queries=True))(
        similarities, labels, frame_labels, pairs
    )[1]
    assert_close(
        loss_terms["video_ap"], quadlinear_ap(video.flatten()[None], others.flatten()[None])
    )
    assert_close(
        loss_terms["infonce"],
        infonce(video.flatten()[None], others.flatten()[None], temperature=0.03),
    )


def test_options_of_a_configuration_reach_the_loss(
    views: tuple[Similarities, Tensor, Tensor, Tensor],
) -> None:
    """Whole numbers stay whole; an option that the loss does not have is refused with those that it
    has."""
    similarities, labels, *_ = views
    chosen = {"video_ap_loss": "fast_ap", "video_ap_options": {"num_bins": 7}, "frame_ap_weight": 0}
    _, terms = Objective(ObjectiveSettings.model_validate(chosen))(*views)
    expected = losses.fast_ap(similarities.video / 2 + 0.5, without_self(labels), num_bins=7)
    assert_close(terms["video_ap"], expected)
    with pytest.raises(ConfigError, match="unknown option bins; allowed are num_bins"):
        Objective(ObjectiveSettings.model_validate(chosen | {"video_ap_options": {"bins": 7}}))
