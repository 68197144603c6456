"""Step 10: a trained model as a version in MLflow's registry (asset `registered_model`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import FeatureStore
from hapvr.files import file_sha256
from hapvr.model.checkpoint import load_network
from hapvr.networks.backbone import Backbone, load_backbone
from hapvr.networks.whitening import load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.registry.versions import WARNING_TAG, WEIGHTS_TAG, data_digest, register_bundle
from hapvr.scorer.bundle import SCORER_FILE, BundleParts, complete_bundle, random_weights_warning, write_bundle
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.torch_networks import NotExported, write_onnx
from hapvr.steps.alerts import Concern, tell
from hapvr.steps.baseline import ensure_baseline
from hapvr.steps.calibration import calibrate, fit_on_validation, reliability_figure
from hapvr.steps.evaluation import TRAINED, stored_scores
from hapvr.steps.frames import open_frames
from hapvr.steps.gate import Decision, make_decision
from hapvr.steps.model_card import model_card
from hapvr.steps.project import Project
from hapvr.steps.training import TrainingRun, require_trained_on, tracker_of, trained_run
from hapvr.train.run_folder import read_record
from hapvr.video.frames import center_crop, decode_jpegs

CHECKED_VIDEOS = 4
CHECKED_FRAMES = 6
"""Frames checked per video: torch takes half a second for a frame."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """name, version: in the registry; decision: of the gate; bundle: the folder that was packaged; target: mean of the target
    metrics, in [0, 1]; digest: of the bundle; card: Markdown; warning: why not to believe it, or "";
    figure: of the calibration, None without one."""

    run: TrainingRun
    name: str
    version: int
    decision: Decision
    bundle: Path
    target: float
    digest: str
    card: str
    warning: str
    figure: Figure | None


def make_registered_model(
    project: Project, *, run: str = "", tags: Mapping[str, str] | None = None, progress: Progress = no_progress
) -> Registration:
    """Calibrate, bundle, log and register a trained model; it becomes champion if the benchmarks say so.

    run: of the training; "" for the current one. The untrained baseline is registered before it. Raises DataError if a
    benchmark of the configuration has no scores of this model.
    """
    ensure_baseline(project, progress=progress)
    training, tags = trained_run(project, run), tags or {}
    scores = {name: stored_scores(project, training, name) for name in project.config.evaluation.benchmarks}
    target = sum(data["target_means"][TRAINED] for data in scores.values()) / max(len(scores), 1)
    fitted = calibrate(project, training)
    calibration = fitted if isinstance(fitted, Calibration) else None
    backbone = load_backbone(project.config.backbone)
    require_trained_on(training, {"backbone": backbone.settings}, what="the bundle would be made")
    record, tracker = read_record(training.folder), tracker_of(project)
    onnx_folder = training.folder / "exported"
    onnx = export_onnx(project, training, onnx_folder, backbone=backbone)
    warning = random_weights_warning(weights["source"] for weights in record["weights"].values())
    bundle = write_bundle(
        training.folder / "bundle",
        BundleParts(
            network_folder=training.network_folder,
            backbone=backbone,
            whitening=load_whitening(project.root),
            sampling=project.config.sampling,
            provenance={"mlflow_run_id": training.mlflow_run_id, "run_key": training.key, **dict(tags)},
            serving=project.config.serving,
            calibration=calibration,
            warning=warning,
            onnx=onnx,
            onnx_folder=onnx_folder if "files" in onnx else None,
        ),
    )
    evidence = fit_on_validation(project, bundle)
    card = model_card(
        project, training, scores=scores, calibration=fitted, evidence=evidence, tags=tags, onnx=onnx, warning=warning
    )
    complete_bundle(bundle, evidence=evidence, card=card)
    figure = None if calibration is None else reliability_figure(calibration)
    if figure is not None:
        tracker.client.log_figure(training.mlflow_run_id, figure, "figures/calibration/reliability.png")
    # The data is what the training read, which may be less than what is there by now.
    lineage = {WEIGHTS_TAG: backbone.identity.source, **tags, "data.digest": data_digest(record["data_digests"])}
    lineage |= {WARNING_TAG: warning} if warning else {}
    name, run_name = project.config.tracking.registered_model, f"{project.config.name}-{training.key}"
    version = register_bundle(
        tracker, name, bundle, key=training.key, run_name=run_name, params={}, tags=lineage, target=target
    )
    decision = make_decision(project, training, version)
    event = "model_promoted" if decision.promoted else "model_refused"
    tell(project, Concern(event, f"registration/{name}/{version}", f"{name} version {version}: {decision.reason}"))
    return Registration(
        run=training,
        name=name,
        version=version,
        decision=decision,
        bundle=bundle,
        target=target,
        digest=file_sha256(bundle / SCORER_FILE),
        card=card,
        warning=warning,
        figure=figure,
    )


def export_onnx(project: Project, run: TrainingRun, folder: Path, *, backbone: Backbone) -> dict[str, Any]:
    """What `write_onnx` returns for the run's model, or `{"reason": ...}` where it cannot be exported or shall not be.

    All pairs of CHECKED_VIDEOS videos are compared, by their first frames and by their stored features.
    """
    if not project.config.tracking.onnx:
        return {"reason": "tracking.onnx is false"}
    whitening = load_whitening(project.root)
    frames, features = list[Tensor](), list[Tensor]()
    for key in project.root.list_folders(FEATURES_STAGE):
        found = project.shard(FEATURES_STAGE, key).provenance()
        if len(frames) < CHECKED_VIDEOS and found is not None and found.settings.get("whitening") == whitening.sha256:
            store, reader = FeatureStore(project.root, [key]), open_frames(project, key)
            for video_id, regions in store.read(sorted(store.available())[: CHECKED_VIDEOS - len(frames)]):
                crops = center_crop(decode_jpegs(reader.read(video_id).jpegs[:CHECKED_FRAMES]), backbone.crop_px)
                frames.append(torch.from_numpy(crops))
                features.append(regions)
    try:
        network = load_network(run.network_folder)[0]
        return write_onnx(
            folder, backbone=backbone, whitening=whitening, network=network, frames=frames, features=features
        )
    except NotExported as error:
        return {"reason": str(error)}
