"""The untrained baseline as the first champion: it answers before anything is trained, and a trained model has to beat it.

The baseline compares region features as the frozen network gives them (TopK-Chamfer, nothing learned). It is an ordinary
version in the registry, which trained versions have to beat. Its probabilities are fitted on edits of the collection's own
frames, which are made in memory and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.networks.backbone import Backbone, load_backbone
from hapvr.networks.packaged import packaged_origin
from hapvr.networks.whitening import Whitening, load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.registry.versions import WARNING_TAG, champion_of, log_model, register, set_champion, version_tags
from hapvr.scorer.bundle import BundleParts, write_bundle
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.description import CARD_FILE, complete_bundle
from hapvr.scorer.evidence import EvidenceModel
from hapvr.steps.local_baseline import KEY, SETTINGS
from hapvr.steps.model_card import searches_text
from hapvr.steps.project import Project
from hapvr.steps.registration import export_onnx
from hapvr.steps.search_calibration import MAX_VIDEOS, fit_on_edits, training_videos
from hapvr.steps.training import MODELS, TrainingRun, tracker_of

WHITENING_TAG = "hapvr.baseline.whitening"
VIDEOS_TAG = "hapvr.baseline.videos"
WARNING = "this model is untrained: it compares videos by the features of the frozen backbone"


def ensure_baseline(project: Project, *, progress: Progress = no_progress) -> None:
    """Make the untrained baseline of the project's features champion where there is none, or where the champion is a baseline
    of other features or of far fewer videos; a trained champion stays."""
    with project.root.lock("baseline"):
        tracker, name = tracker_of(project), project.config.tracking.registered_model
        champion = champion_of(tracker.client, name)
        tags = {} if champion is None else version_tags(tracker.client, name, champion.version)
        if champion is not None and WHITENING_TAG not in tags:  # trained
            return
        videos, whitening = training_videos(project), load_whitening(project.root)
        wanted = min(MAX_VIDEOS, len(videos))
        if tags.get(WHITENING_TAG) != whitening.sha256 or int(tags[VIDEOS_TAG]) * 2 <= wanted:
            version = _register_baseline(project, videos, whitening, progress=progress)
            set_champion(
                tracker.client, name, version, how="baseline", reason="untrained; nothing better was trained yet"
            )


def _register_baseline(project: Project, videos: Mapping[str, str], whitening: Whitening, *, progress: Progress) -> int:
    """videos: shard by id. Returns the version."""
    backbone = load_backbone(project.config.backbone)
    network = SimilarityNetwork(SETTINGS, dims=whitening.dims).eval()
    key = f"{KEY}-{whitening.sha256[:8]}-{len(videos)}"
    folder = project.root.local_path(f"{MODELS}/{key}")
    tags = {
        "backbone.weights": backbone.identity.source,
        WHITENING_TAG: whitening.sha256,
        VIDEOS_TAG: str(min(MAX_VIDEOS, len(videos))),
    }
    run = TrainingRun(key, folder, "")
    save_network(network, run.network_folder, metadata={})
    onnx = export_onnx(project, run, folder / "exported", backbone=backbone)
    bundle = write_bundle(
        folder / "bundle",
        BundleParts(
            network_folder=run.network_folder,
            backbone=backbone,
            whitening=whitening,
            sampling=project.config.sampling,
            serving=project.config.serving,
            onnx=onnx,
            onnx_folder=folder / "exported" if "files" in onnx else None,
        ),
    )
    evidence, calibration = fit_on_edits(project, bundle, videos, progress=progress)
    card = _card(backbone, calibration, evidence, len(videos))
    complete_bundle(bundle, evidence=evidence, calibration=calibration, card=card)
    tracker = tracker_of(project)
    run_id = tracker.start(key, name=f"{project.config.name}-{KEY}", params={}, tags=tags)
    tracker.client.log_artifact(run_id, str(bundle / CARD_FILE))
    uri = log_model(tracker, run_id, bundle)
    tracker.client.set_terminated(run_id)
    name = project.config.tracking.registered_model
    return register(tracker, name, run_id=run_id, model_uri=uri, target=None, tags=tags | {WARNING_TAG: WARNING})


def _card(backbone: Backbone, calibration: Calibration | None, evidence: EvidenceModel | str, num_videos: int) -> str:
    """Markdown."""
    identity = backbone.identity
    lines = [
        f"**Warning: {WARNING}.**",
        "# Model card: untrained baseline",
        f"Similarity of two videos from region features of {identity.architecture} ({identity.source} weights, SHA-256 "
        f"{identity.sha256[:12]}), whitened on the {num_videos} videos of this collection. Nothing was trained.",
        *([packaged_origin(identity.architecture)] if identity.source == "packaged" else []),
        "## Calibration",
        "None: there are too few videos to fit on. The column `probability` is empty."
        if calibration is None
        else f"Fitted on {calibration.num_matches} edits of frames of this collection and their originals, and on "
        f"{calibration.num_others} videos that came next to these in searches. Real edits differ; test benchmarks were not used.",
        "## Searches",
        searches_text(evidence),
        "## Limits",
        "- Not evaluated on any benchmark.\n- Look-alikes (one room, one person, flat graphics) may pass for copies.\n"
        "- Sound is not used. Pictures are centre-cropped.",
    ]
    return "\n\n".join(lines) + "\n"
