"""The untrained baseline without torch and without a registry: a bundle below `models/`, which the index names by its folder.

It scores as the one of `hapvr.steps.baseline` does. Its probabilities are fitted on the edits that people make of videos
(`hapvr.demo.edits`), done to some of the collection's own frames in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import save_file

from hapvr.errors import FULL_HINT, MissingPartError
from hapvr.model.description import DESCRIPTION_FILE, WEIGHTS_FILE, NetworkDescription
from hapvr.model.settings import NetworkSettings
from hapvr.networks.extract import open_backbone
from hapvr.networks.packaged import OPSET, PackagedBackbone, packaged_origin
from hapvr.networks.whitening import Whitening, load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.scorer.bundle import BundleParts, write_bundle
from hapvr.scorer.description import CARD_FILE, ONNX_FOLDER, complete_bundle
from hapvr.scorer.evidence import EvidenceModel
from hapvr.steps.project import Project
from hapvr.steps.search_calibration import MAX_VIDEOS, fit_on_edits, training_videos

if TYPE_CHECKING:
    from hapvr.networks.backbone import Backbone

WARNING = "this model is untrained: it compares videos by the features of the frozen backbone"
KEY = "untrained"
"""Begins the name of the baseline's folder below `models/`, and of its MLflow run where there is a registry."""
SETTINGS = NetworkSettings(attention=False, comparator=False)
GRAPHS = {
    "embed.onnx": "embed (float[T, R, D] regions) => (float[T, R, D] embedding) {embedding = Identity(regions)}",
    "frames.onnx": """frames (float[T, R, D] query, float[U, R, D] reference) => (float[T, U] frame_similarity)
        <int64[1] first = {0}, int64[1] second = {1}> {
            rows = Transpose<perm = [1, 0, 2]>(query)
            each = Unsqueeze(rows, second)
            columns = Transpose<perm = [1, 2, 0]>(reference)
            products = MatMul(each, columns)
            best = ReduceMax<keepdims = 0>(products, second)
            frame_similarity = ReduceMean<keepdims = 0>(best, first)
        }""",
}
"""The network of SETTINGS, in which a region's best counterpart among NUM_REGIONS counts alone."""


def local_baseline(project: Project, *, progress: Progress = no_progress) -> Path:
    """The bundle of the untrained baseline; it is made again where the collection has doubled or its whitening changed.

    Raises MissingPartError for a collection whose models are in a registry, and for a backbone that needs torch.
    """
    root, config = project.root, project.config
    backbone = open_backbone(config.backbone, config.device) if not root.exists("mlflow/mlflow.db") else None
    if config.tracking.uri or not isinstance(backbone, PackagedBackbone):
        raise MissingPartError(
            f"index add: {root.url} has a registry of models or another backbone than a packaged one, which needs torch and "
            f"MLflow; {FULL_HINT}"
        )
    with root.lock("baseline"):
        whitening, videos = load_whitening(root), training_videos(project)
        models, begins = root.local_path("models"), f"{KEY}-{whitening.sha256[:8]}-"
        known = [int(name.removeprefix(begins)) for name in root.list_folders("models") if name.startswith(begins)]
        made = max((count for count in known if (models / f"{begins}{count}/bundle/{CARD_FILE}").is_file()), default=0)
        if made * 2 > min(MAX_VIDEOS, len(videos)):
            return models / f"{begins}{made}" / "bundle"
        return _make(project, models / f"{begins}{len(videos)}", backbone, whitening, videos, progress)


def _make(
    project: Project,
    folder: Path,
    backbone: PackagedBackbone,
    whitening: Whitening,
    videos: Mapping[str, str],
    progress: Progress,
) -> Path:
    import onnx.parser  # another installation does without

    network, exported = folder / "network", folder / "exported"
    for made in (network, exported / ONNX_FOLDER):
        made.mkdir(parents=True, exist_ok=True)
    save_file({}, network / WEIGHTS_FILE)
    description = NetworkDescription(dims=whitening.dims, settings=SETTINGS, metadata={})
    (network / DESCRIPTION_FILE).write_text(description.model_dump_json(indent=2), encoding="utf-8")
    graphs = {
        name: onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {OPSET}]> {text}')
        for name, text in GRAPHS.items()
    }
    graphs["backbone.onnx"] = backbone.graph(whitening)
    for name, graph in graphs.items():
        (exported / ONNX_FOLDER / name).write_bytes(graph.SerializeToString())
    record = {"opset": OPSET, "settings": SETTINGS.model_dump(mode="json"), "files": sorted(graphs)}
    return complete_baseline(project, folder, network, backbone, whitening, videos, record, progress)


def complete_baseline(
    project: Project,
    folder: Path,
    network_folder: Path,
    backbone: Backbone | PackagedBackbone,
    whitening: Whitening,
    videos: Mapping[str, str],
    onnx: Mapping[str, Any],
    progress: Progress,
) -> Path:
    """The bundle below `folder`, fitted on edits of the videos, with its card. onnx: see `write_bundle`; the files that it
    names are in `exported`."""
    bundle = write_bundle(
        folder / "bundle",
        BundleParts(
            network_folder=network_folder,
            backbone=backbone,
            whitening=whitening,
            sampling=project.config.sampling,
            serving=project.config.serving,
            onnx=onnx,
            onnx_folder=folder / "exported" if "files" in onnx else None,
        ),
    )
    evidence, calibration = fit_on_edits(project, bundle, videos, progress=progress)
    identity = backbone.identity
    fitted = "None: there are too few videos to fit on. The column `probability` is empty."
    if calibration is not None:
        fitted = (
            f"Fitted on {calibration.num_matches} edits of frames of this collection and their originals, and on "
            f"{calibration.num_others} videos that came next to these in searches. Real edits differ; test benchmarks were not "
            "used."
        )
    card = [
        f"**Warning: {WARNING}.**",
        "# Model card: untrained baseline",
        f"Similarity of two videos from region features of {identity.architecture} ({identity.source} weights, SHA-256 "
        f"{identity.sha256[:12]}), whitened on the {len(videos)} videos of this collection. Nothing was trained.",
        *([packaged_origin(identity.architecture)] if identity.source == "packaged" else []),
        f"## Calibration\n\n{fitted}",
        f"## Searches\n\n{searches_text(evidence)}",
        "## Limits\n\n- Not evaluated on any benchmark.\n- Look-alikes (one room, one person, flat graphics) may pass for "
        "copies.\n- Sound is not used. Pictures are centre-cropped.",
    ]
    complete_bundle(bundle, evidence=evidence, calibration=calibration, card="\n\n".join(card) + "\n")
    return bundle


def searches_text(evidence: EvidenceModel | str) -> str:
    """A paragraph: how answers of searches are ordered and what their probabilities rest on, or why there are none."""
    if isinstance(evidence, str):
        return f"Ranked by similarity alone, without probabilities: {evidence}."
    weights = ", ".join(f"{name} {weight:.3g}" for name, weight in evidence.weights.items() if weight)
    return (
        f"Answers are ordered by the probability of a match, fitted on searches for {evidence.num_groups} videos of "
        f"{evidence.source['benchmark']}: {evidence.num_matches} matches and {evidence.num_others} others among their "
        f"candidates; Brier score {evidence.brier:.4f} on searches that were not fitted. Log-odds are {evidence.intercept:.3g} plus "
        f"{weights}, times what was found. They hold where {100 * evidence.prior:.1f} % of the candidates match."
    )
