"""The untrained baseline: it answers searches before anything is trained, and a trained model has
to beat it.

It compares frame vectors as the frozen network gives them (TopK-Chamfer similarity, nothing
learned). What its answers are worth ships with a network that was made for copies, as that network
never changes; for other networks it is fitted on edits of the collection's own frames. In a
collection without a registry it is a bundle below `models/`, which the index names by its folder;
elsewhere it is an ordinary version in the registry, and the first champion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from hapvr.errors import DataError
from hapvr.files import digest_of, write_text
from hapvr.model.checkpoint import DESCRIPTION_FILE, WEIGHTS_FILE, NetworkDescription
from hapvr.networks.encoder import FrameEncoder, open_encoder, weights_origin
from hapvr.networks.packaged import PackagedBackbone
from hapvr.networks.region_graph import OPSET
from hapvr.networks.whitening import Whitening, load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.registry.records import count_of
from hapvr.scorer.bundle import read_calibration, read_evidence
from hapvr.scorer.bundle_writer import BundleParts, complete_bundle, write_bundle
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.description import CARD_FILE, FORMAT_VERSION, bundle_format
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.onnx_networks import ONNX_FOLDER
from hapvr.scorer.plain_networks import UNTRAINED
from hapvr.scorer.shipped import shipped_calibration
from hapvr.search.collection import serving_index
from hapvr.steps.project import REGISTRY, Project
from hapvr.steps.search_calibration import MAX_VIDEOS, fit_on_edits, training_videos

WARNING = "this model is untrained: it compares videos by the features of the frozen backbone"
KEY = "untrained"
"""Begins the name of the baseline's folder below `models/`, and of its MLflow run where there is a
registry."""
WHITENING_TAG = "hapvr.baseline.whitening"
VIDEOS_TAG = "hapvr.baseline.videos"


@dataclass(frozen=True)
class Baseline:
    """Which baseline a project's features ask for."""

    features: str
    """digest of what the features come from"""
    num_videos: int
    """those that it is fitted on; 0 where nothing is fitted"""

    @property
    def key(self) -> str:
        """Names its folder and its MLflow run."""
        name = f"{KEY}-{self.features[:8]}"
        return f"{name}-{self.num_videos}" if self.num_videos else name

    def replaces(self, other_features: str, other_num_videos: int) -> bool:
        """Whether it is better than one of these features that was fitted on so many videos."""
        if other_features != self.features:
            return True
        return self.num_videos > 0 and other_num_videos * 2 <= self.num_videos


def wanted_baseline(project: Project, videos: Mapping[str, str]) -> Baseline:
    """The baseline that a project should have. videos: what could be fitted on, by id."""
    features = _features_digest(project)
    is_fitted = shipped_calibration(project.config.backbone) is None
    return Baseline(features, min(MAX_VIDEOS, len(videos)) if is_fitted else 0)


def _features_digest(project: Project) -> str:
    """Of what the features come from. An imported whitening stays while the rest changes."""
    config = project.config
    return digest_of(
        [
            load_whitening(project.root).sha256,
            config.backbone.model_dump(mode="json"),
            config.sampling.identity_fields(),
        ]
    )


def ensure_baseline(project: Project, *, progress: Progress = no_progress) -> None:
    """Make the untrained baseline of the project's features champion where there is none, or where
    the champion is a baseline of other features or of far fewer videos; a trained champion stays.
    """
    from hapvr.registry.versions import (
        SINCE_TAG,
        WARNING_TAG,
        WEIGHTS_TAG,
        BundleRun,
        champion_of,
        promote,
        register_bundle,
        version_tags,
    )
    from hapvr.steps.training import tracker_of

    with project.root.lock("baseline"):
        tracker = tracker_of(project)
        name = project.config.tracking.registered_model
        champion = champion_of(tracker.client, name)
        tags = {} if champion is None else version_tags(tracker.client, name, champion.version)
        is_trained = champion is not None and WHITENING_TAG not in tags
        if is_trained:
            return
        if champion is None:
            _require_registry_not_lost(project)
        videos = training_videos(project)
        wanted = wanted_baseline(project, videos)
        is_there = SINCE_TAG in tags and not wanted.replaces(
            tags[WHITENING_TAG], count_of(tags.get(VIDEOS_TAG)) or 0
        )
        if is_there:
            return

        encoder = open_encoder(project.config.backbone, project.config.device)
        folder = project.root.local_path(f"models/{wanted.key}")
        bundle = _write(project, folder, encoder, videos, progress)
        run = BundleRun(
            key=wanted.key,
            name=f"{project.config.name}-{KEY}",
            params=_run_parameters(project),
            metrics=_run_metrics(bundle),
            tags={
                WEIGHTS_TAG: encoder.identity.source,
                WHITENING_TAG: wanted.features,
                VIDEOS_TAG: str(wanted.num_videos),
                WARNING_TAG: WARNING,
            },
        )
        version = register_bundle(tracker, name, bundle, run)
        with project.root.lock("promotion"):
            if champion_of(tracker.client, name) == champion:  # a training may have ended meanwhile
                reason = "untrained; nothing better was there"
                promote(tracker.client, name, version, how="baseline", reason=reason)


def _run_parameters(project: Project) -> dict[str, Any]:
    """The settings that decide what the baseline is, for its MLflow run."""
    stored = project.config.stored()
    return {section: stored[section] for section in ("backbone", "whitening", "sampling")}


def _run_metrics(bundle: Path) -> dict[str, float]:
    """What the answers of a bundle rest on and are worth, for its MLflow run: numbers of its
    evidence and of its calibration, where it has them."""
    parts = {"evidence": read_evidence(bundle), "calibration": read_calibration(bundle)}
    names = ("brier", "prior", "num_matches", "num_others")
    numbers = {
        f"{part}/{name}": getattr(values, name)
        for part, values in parts.items()
        if values is not None
        for name in names
    }
    # The Brier score of a calibration that ships was not measured.
    return {name: float(number) for name, number in numbers.items() if number is not None}


def log_baseline_metrics(project: Project, metrics: Mapping[str, float]) -> None:
    """Log metrics of the untrained network to the MLflow run of the newest baseline of the
    project's features; nothing where there is none."""
    from hapvr.steps.training import tracker_of

    tracker = tracker_of(project)
    name = project.config.tracking.registered_model
    features = _features_digest(project)
    versions = tracker.client.search_model_versions(
        f"name = '{name}' and tags.`{WHITENING_TAG}` = '{features}'"
    )
    if versions:
        newest = max(versions, key=lambda version: int(version.version))
        tracker.metrics(str(newest.run_id), metrics)


def local_baseline(project: Project, *, progress: Progress = no_progress) -> Path:
    """The bundle of the untrained baseline, for a collection without a registry; one that was
    fitted is written again where the collection has doubled, and one of an older format. Raises
    MissingPartError for an encoder that needs torch where torch is not installed."""
    with project.root.lock("baseline"):
        videos = training_videos(project)
        wanted = wanted_baseline(project, videos)
        stored = _stored(project, wanted)
        if stored is not None:
            return stored

        encoder = open_encoder(project.config.backbone, project.config.device)
        folder = project.root.local_path(f"models/{wanted.key}")
        return _write(project, folder, encoder, videos, progress)


def stored_baseline(project: Project) -> Path | None:
    """The bundle that `local_baseline` gave before; None where it would write one."""
    if not project.root.list_folders("models"):
        return None
    return _stored(project, wanted_baseline(project, training_videos(project)))


def _stored(project: Project, wanted: Baseline) -> Path | None:
    """A bundle that is as good as the wanted baseline."""
    models = project.root.local_path("models")
    for key in project.root.list_folders("models"):
        begins = f"{KEY}-{wanted.features[:8]}"
        bundle = models / key / "bundle"
        if not key.startswith(begins) or not (bundle / CARD_FILE).is_file():
            continue
        num_videos = key.removeprefix(begins).removeprefix("-") or "0"
        if not num_videos.isdigit() or wanted.replaces(wanted.features, int(num_videos)):
            continue
        if bundle_format(bundle) >= FORMAT_VERSION:
            return bundle

    return None


def has_registry(project: Project) -> bool:
    """Whether the models of a project are in a registry of MLflow: one that is configured, or one
    that something was registered in."""
    return bool(project.config.tracking.uri) or project.root.exists(REGISTRY)


def _require_registry_not_lost(project: Project) -> None:
    """Raise DataError where a registered model answers searches, though the registry has none."""
    serving = serving_index(project.root)
    if serving is not None and serving.model.startswith("models:/"):
        raise DataError(
            f"baseline: the registry has no champion, and searches are answered by "
            f"{serving.model}; restore the registry from a back-up, or name a version with "
            "`hapvr models promote`, or `hapvr index build --model DATA/models/RUN/bundle`"
        )


def _write(
    project: Project,
    folder: Path,
    encoder: FrameEncoder,
    videos: Mapping[str, str],
    progress: Progress,
) -> Path:
    """Write the bundle below `folder`, with what its answers are worth and its card."""
    whitening = load_whitening(project.root)
    network = folder / "network"
    _write_untrained_network(network, whitening.dims)
    onnx = _export(project, folder, encoder, whitening)
    parts = BundleParts(
        network_folder=network,
        encoder=encoder,
        whitening=whitening,
        sampling=project.config.sampling,
        serving=project.config.serving,
        onnx=onnx,
        onnx_folder=folder / "exported" if onnx.get("files") else None,
    )
    bundle = write_bundle(folder / "bundle", parts)
    evidence: EvidenceModel | str
    shipped = shipped_calibration(project.config.backbone)
    if shipped is None:
        evidence, calibration = fit_on_edits(project, bundle, videos, progress=progress)
    else:
        evidence = shipped.evidence
        calibration = shipped.calibration

    card = _card(encoder, videos, evidence, calibration)
    complete_bundle(bundle, evidence=evidence, calibration=calibration, card=card)
    return bundle


def _write_untrained_network(folder: Path, dims: int) -> None:
    """The network that compares vectors as they are, as `save_network` writes it by torch."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({}, folder / WEIGHTS_FILE)
    description = NetworkDescription(dims=dims, settings=UNTRAINED, metadata={})
    write_text(folder / DESCRIPTION_FILE, description.model_dump_json(indent=2) + "\n")


def _export(
    project: Project, folder: Path, encoder: FrameEncoder, whitening: Whitening
) -> dict[str, Any]:
    """What scorer.json says of the ONNX files, which are written to `exported`: those of a packaged
    backbone, none for a network that stays in its package, and those that torch exports."""
    record = {"opset": OPSET, "settings": UNTRAINED.model_dump(mode="json")}
    if encoder.state() is None:
        return record | {"files": []}
    if isinstance(encoder, PackagedBackbone):
        exported = folder / "exported" / ONNX_FOLDER
        exported.mkdir(parents=True, exist_ok=True)
        graph = encoder.graph(whitening)
        (exported / "backbone.onnx").write_bytes(graph.SerializeToString())
        return record | {"files": ["backbone.onnx"]}

    from hapvr.steps.export import export_onnx  # with torch

    return export_onnx(project, folder)


def _card(
    encoder: FrameEncoder,
    videos: Mapping[str, str],
    evidence: EvidenceModel | str,
    calibration: Calibration | None,
) -> str:
    """The model card, in Markdown."""
    identity = encoder.identity
    is_copy_network = encoder.num_vectors == 1
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
