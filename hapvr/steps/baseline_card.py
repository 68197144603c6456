"""The model card of the untrained baseline, and the paragraph on searches of any model card."""

from __future__ import annotations

from collections.abc import Mapping

from hapvr.networks.encoder import FrameEncoder, weights_origin
from hapvr.networks.settings import COPY_NETWORKS
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.evidence import EvidenceModel

WARNING = "this model is untrained: it compares videos by the features of the frozen backbone"


def baseline_card(
    encoder: FrameEncoder,
    videos: Mapping[str, str],
    evidence: EvidenceModel | str,
    calibration: Calibration | None,
) -> str:
    """The card, in Markdown. videos: those of the collection, by id."""
    identity = encoder.identity
    is_copy_network = identity.architecture in COPY_NETWORKS
    described = (
        f"Similarity of two videos from frame vectors of {identity.architecture} "
        f"({identity.source} weights, SHA-256 {identity.sha256[:12]})"
    )
    if not is_copy_network:
        described += f", whitened on the {len(videos)} videos of this collection"
    origin = weights_origin(identity.architecture, identity.source)
    paragraphs = [
        f"**Warning: {WARNING}.**",
        "# Model card: untrained baseline",
        f"{described}. Nothing was trained.",
        origin,
        f"## Calibration\n\n{_calibration_text(calibration)}",
        f"## Searches\n\n{searches_text(evidence)}",
        "## Limits\n\n- Not evaluated on any benchmark.\n- Look-alikes (one room, one person, flat "
        "graphics) may pass for copies.\n- Sound is not used.",
    ]
    if not is_copy_network:
        paragraphs[-1] += " Pictures are centre-cropped."
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def _calibration_text(calibration: Calibration | None) -> str:
    """A paragraph: what the probability of a pair rests on, or why there is none."""
    if calibration is None:
        return "None: there are too few videos to fit on. The column `probability` is empty."
    if "edited" in calibration.source:
        return (
            f"Fitted on {calibration.num_matches} edits of frames of this collection and their "
            f"originals, and on {calibration.num_others} videos that came next to these in "
            "searches. Real edits differ; test benchmarks were not used."
        )

    return f"Shipped with the network: {calibration.source['shipped']}."


def searches_text(evidence: EvidenceModel | str) -> str:
    """A paragraph: how answers of searches are ordered and what their probabilities rest on, or why
    there are none."""
    if isinstance(evidence, str):
        return f"Ranked by similarity alone, without probabilities: {evidence}."
    if "shipped" in evidence.source:
        checked = evidence.source["checked"]
        return (
            f"Answers are ordered by the probability of a match. It ships with the network: "
            f"{evidence.source['shipped']}. There `match` at precision 0.95 had a precision of "
            f"{checked['precision']:g} and a recall of {checked['recall']:g}. Limits: "
            f"{evidence.source['limits']}."
        )

    weights = ", ".join(
        f"{name} {weight:.3g}" for name, weight in evidence.weights.items() if weight
    )
    return (
        f"Answers are ordered by the probability of a match, fitted on searches for "
        f"{evidence.num_groups} videos of {evidence.source['benchmark']}: {evidence.num_matches} "
        f"matches and {evidence.num_others} others among their candidates; Brier score "
        f"{evidence.brier:.4f} on searches that were not fitted. Log-odds are "
        f"{evidence.intercept:.3g} plus {weights}, times what was found. They hold where "
        f"{100 * evidence.prior:.1f} % of the candidates match."
    )
