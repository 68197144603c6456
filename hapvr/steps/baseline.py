"""The untrained baseline as the first champion: it answers before anything is trained, and a trained model has to beat it.

The baseline compares region features as the frozen network gives them (TopK-Chamfer, nothing learned). It is an ordinary
version in the registry, which trained versions have to beat. Its probabilities are fitted on edits of the collection's own
frames, which are made in memory and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.networks.backbone import load_backbone
from hapvr.networks.whitening import Whitening, load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.registry.versions import WARNING_TAG, champion_of, promote, register_bundle, version_tags
from hapvr.steps.local_baseline import KEY, SETTINGS, WARNING, complete_baseline
from hapvr.steps.project import Project
from hapvr.steps.registration import export_onnx
from hapvr.steps.search_calibration import MAX_VIDEOS, training_videos
from hapvr.steps.training import MODELS, TrainingRun, tracker_of

WHITENING_TAG = "hapvr.baseline.whitening"
VIDEOS_TAG = "hapvr.baseline.videos"


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
            promote(tracker.client, name, version, how="baseline", reason="untrained; nothing better was trained yet")


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
        WARNING_TAG: WARNING,
    }
    run = TrainingRun(key, folder, "")
    save_network(network, run.network_folder, metadata={})
    onnx = export_onnx(project, run, folder / "exported", backbone=backbone)
    bundle = complete_baseline(project, folder, run.network_folder, backbone, whitening, videos, onnx, progress)
    name, run_name = project.config.tracking.registered_model, f"{project.config.name}-{KEY}"
    return register_bundle(tracker_of(project), name, bundle, key=key, run_name=run_name, params={}, tags=tags)
