"""The untrained baseline: it answers searches before anything is trained, and a trained model has
to beat it.

It compares region features as the frozen network gives them (TopK-Chamfer, nothing learned). Its
probabilities are fitted on the edits that people make of videos (`hapvr.demo.edits`), done to some
of the collection's own frames in memory. With torch and MLflow it is an ordinary version in the
registry, and the first champion; without, it is a bundle below `models/`, which the index names by
its folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import save_file

from hapvr.errors import FULL_HINT, DataError, MissingPartError
from hapvr.files import digest_of
from hapvr.model.checkpoint import DESCRIPTION_FILE, WEIGHTS_FILE, NetworkDescription
from hapvr.model.settings import NetworkSettings
from hapvr.networks.extract import open_backbone
from hapvr.networks.packaged import OPSET, PackagedBackbone, packaged_origin
from hapvr.networks.whitening import Whitening, load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.scorer.bundle import CARD_FILE, complete_bundle, write_bundle
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.onnx_networks import ONNX_FOLDER
from hapvr.search.collection import serving_index
from hapvr.steps.project import REGISTRY, Project
from hapvr.steps.search_calibration import MAX_VIDEOS, fit_on_edits, training_videos

if TYPE_CHECKING:
    from hapvr.networks.backbone import Backbone

WARNING = "this model is untrained: it compares videos by the features of the frozen backbone"
KEY = "untrained"
"""Begins the name of the baseline's folder below `models/`, and of its MLflow run where there is a
registry."""
WHITENING_TAG = "hapvr.baseline.whitening"
VIDEOS_TAG = "hapvr.baseline.videos"
SETTINGS = NetworkSettings(attention=False, comparator=False)
GRAPHS = {
    "embed.onnx": "embed (float[T, R, D] regions) => (float[T, R, D] embedding) {embedding = "
    "Identity(regions)}",
    "frames.onnx": """frames (float[T, R, D] query, float[U, R, D] reference)
        => (float[T, U] frame_similarity)
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


def ensure_baseline(project: Project, *, progress: Progress = no_progress) -> None:
    """Make the untrained baseline of the project's features champion where there is none, or where
    the champion is a baseline of other features or of far fewer videos; a trained champion stays.
    """
    from hapvr.model.checkpoint import save_network
    from hapvr.model.network import SimilarityNetwork
    from hapvr.networks.backbone import load_backbone
    from hapvr.registry.versions import (
        SINCE_TAG,
        WARNING_TAG,
        WEIGHTS_TAG,
        champion_of,
        promote,
        register_bundle,
        version_tags,
    )
    from hapvr.steps.registration import export_onnx
    from hapvr.steps.training import TrainingRun, tracker_of

    with project.root.lock("baseline"):
        tracker, name = tracker_of(project), project.config.tracking.registered_model
        champion = champion_of(tracker.client, name)
        tags = {} if champion is None else version_tags(tracker.client, name, champion.version)
        if champion is not None and WHITENING_TAG not in tags:  # trained
            return
        serving = serving_index(project.root)
        if champion is None and serving is not None and serving.model.startswith("models:/"):
            raise DataError(
                f"baseline: the registry has no champion, and searches are answered by "
                f"{serving.model}; restore the registry "
                "from a back-up, or name a version with `hapvr models promote`, or `hapvr "
                "index build --model DATA/models/RUN/bundle`"
            )
        videos, whitening = training_videos(project), load_whitening(project.root)
        used = min(MAX_VIDEOS, len(videos))
        made_for = _features_digest(project, whitening)
        enough = tags.get(WHITENING_TAG) == made_for and (
            int(tags[VIDEOS_TAG]) * 2 > used or not used
        )
        if enough and SINCE_TAG in tags:
            return
        backbone, key = (
            load_backbone(project.config.backbone),
            f"{KEY}-{made_for[:8]}-{len(videos)}",
        )
        run = TrainingRun(key, project.root.local_path(f"models/{key}"), "")
        save_network(
            SimilarityNetwork(SETTINGS, dims=whitening.dims).eval(), run.network_folder, metadata={}
        )
        onnx = export_onnx(project, run, backbone=backbone)
        bundle = _complete(project, run.folder, backbone, videos, onnx, progress)
        tags = {
            WEIGHTS_TAG: backbone.identity.source,
            WHITENING_TAG: made_for,
            VIDEOS_TAG: str(used),
        }
        tags[WARNING_TAG] = WARNING
        run_name = f"{project.config.name}-{KEY}"
        version = register_bundle(
            tracker, name, bundle, key=key, run_name=run_name, params={}, tags=tags
        )
        with project.root.lock("promotion"):
            if champion_of(tracker.client, name) == champion:  # a training may have ended meanwhile
                promote(
                    tracker.client,
                    name,
                    version,
                    how="baseline",
                    reason="untrained; nothing better is there yet",
                )


def _features_digest(project: Project, whitening: Whitening) -> str:
    """Of what the features come from: an imported whitening stays while the rest changes."""
    config = project.config
    return digest_of(
        [
            whitening.sha256,
            config.backbone.model_dump(mode="json"),
            config.sampling.identity_fields(),
        ]
    )


def local_baseline(project: Project, *, progress: Progress = no_progress) -> Path:
    """The bundle of the untrained baseline; it is made again where the collection has doubled or
    its whitening changed. Raises MissingPartError for a collection whose models are in a registry,
    and for a backbone that needs torch."""
    root, config = project.root, project.config
    backbone = open_backbone(config.backbone, config.device) if not root.exists(REGISTRY) else None
    if config.tracking.uri or not isinstance(backbone, PackagedBackbone):
        raise MissingPartError(
            f"index add: {root.url} has a registry of models or another backbone than a "
            "packaged one, which needs torch and "
            f"MLflow; {FULL_HINT}"
        )
    with root.lock("baseline"):
        whitening, videos = load_whitening(root), training_videos(project)
        models, begins = (
            root.local_path("models"),
            f"{KEY}-{_features_digest(project, whitening)[:8]}-",
        )
        known = [
            int(name.removeprefix(begins))
            for name in root.list_folders("models")
            if name.startswith(begins)
        ]
        made = max(
            (
                count
                for count in known
                if (models / f"{begins}{count}/bundle/{CARD_FILE}").is_file()
            ),
            default=-1,
        )
        if made * 2 > min(MAX_VIDEOS, len(videos)) or made == len(videos):
            return models / f"{begins}{made}" / "bundle"
        import onnx.parser  # another installation does without

        # the network of SETTINGS and its graphs, as `save_network` and `write_onnx` write them by
        # torch
        folder = models / f"{begins}{len(videos)}"
        network, exported = folder / "network", folder / "exported" / ONNX_FOLDER
        for place in (network, exported):
            place.mkdir(parents=True, exist_ok=True)
        save_file({}, network / WEIGHTS_FILE)
        description = NetworkDescription(dims=whitening.dims, settings=SETTINGS, metadata={})
        (network / DESCRIPTION_FILE).write_text(
            description.model_dump_json(indent=2), encoding="utf-8"
        )
        header = f'<ir_version: 10, opset_import: ["": {OPSET}]>'
        graphs = {
            name: onnx.parser.parse_model(f"{header} {text}") for name, text in GRAPHS.items()
        }
        graphs["backbone.onnx"] = backbone.graph(whitening)
        for name, graph in graphs.items():
            (exported / name).write_bytes(graph.SerializeToString())
        made_with = {
            "opset": OPSET,
            "settings": SETTINGS.model_dump(mode="json"),
            "files": sorted(graphs),
        }
        return _complete(project, folder, backbone, videos, made_with, progress)


def _complete(
    project: Project,
    folder: Path,
    backbone: Backbone | PackagedBackbone,
    videos: Mapping[str, str],
    onnx: Mapping[str, Any],
    progress: Progress,
) -> Path:
    """The bundle below `folder`, fitted on edits of the videos, with its card."""
    bundle = write_run_bundle(project, folder, backbone, onnx)
    evidence, calibration = fit_on_edits(project, bundle, videos, progress=progress)
    identity = backbone.identity
    fitted = "None: there are too few videos to fit on. The column `probability` is empty."
    if calibration is not None:
        fitted = (
            f"Fitted on {calibration.num_matches} edits of frames of this collection and "
            "their originals, and on "
            f"{calibration.num_others} videos that came next to these in searches. Real "
            "edits differ; test benchmarks were not "
            "used."
        )
    card = [
        f"**Warning: {WARNING}.**",
        "# Model card: untrained baseline",
        f"Similarity of two videos from region features of {identity.architecture} "
        f"({identity.source} weights, SHA-256 "
        f"{identity.sha256[:12]}), whitened on the {len(videos)} videos of this collection. "
        "Nothing was trained.",
        *([packaged_origin(identity.architecture)] if identity.source == "packaged" else []),
        f"## Calibration\n\n{fitted}",
        f"## Searches\n\n{searches_text(evidence)}",
        "## Limits\n\n- Not evaluated on any benchmark.\n- Look-alikes (one room, one "
        "person, flat graphics) may pass for "
        "copies.\n- Sound is not used. Pictures are centre-cropped.",
    ]
    complete_bundle(
        bundle, evidence=evidence, calibration=calibration, card="\n\n".join(card) + "\n"
    )
    return bundle


def write_run_bundle(
    project: Project,
    folder: Path,
    backbone: Backbone | PackagedBackbone,
    onnx: Mapping[str, Any],
    **parts: Any,
) -> Path:
    """The bundle of the network below the folder of a run. onnx: what `export_onnx` returned;
    parts: more of `write_bundle`."""
    return write_bundle(
        folder / "bundle",
        network_folder=folder / "network",
        backbone=backbone,
        whitening=load_whitening(project.root),
        sampling=project.config.sampling,
        serving=project.config.serving,
        onnx=onnx,
        onnx_folder=folder / "exported" if "files" in onnx else None,
        **parts,
    )


def searches_text(evidence: EvidenceModel | str) -> str:
    """A paragraph: how answers of searches are ordered and what their probabilities rest on, or why
    there are none."""
    if isinstance(evidence, str):
        return f"Ranked by similarity alone, without probabilities: {evidence}."
    weights = ", ".join(
        f"{name} {weight:.3g}" for name, weight in evidence.weights.items() if weight
    )
    return (
        f"Answers are ordered by the probability of a match, fitted on searches for "
        f"{evidence.num_groups} videos of "
        f"{evidence.source['benchmark']}: {evidence.num_matches} matches and "
        f"{evidence.num_others} others among their "
        f"candidates; Brier score {evidence.brier:.4f} on searches that were not fitted. "
        f"Log-odds are {evidence.intercept:.3g} plus "
        f"{weights}, times what was found. They hold where {100 * evidence.prior:.1f} % of "
        "the candidates match."
    )
