"""The untrained baseline without torch and without a registry: a bundle below `models/`, which the index names by its folder.

It scores as the one of `hapvr.steps.baseline` does. Its probabilities are fitted on the edits that people make of videos
(`hapvr.demo.edits`), done to some of the collection's own frames in memory.
"""

from __future__ import annotations

from pathlib import Path

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
from hapvr.steps.project import Project
from hapvr.steps.search_calibration import MAX_VIDEOS, fit_on_edits, training_videos

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
    videos: dict[str, str],
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
    bundle = write_bundle(
        folder / "bundle",
        BundleParts(
            network_folder=network,
            backbone=backbone,
            whitening=whitening,
            sampling=project.config.sampling,
            serving=project.config.serving,
            onnx=record,
            onnx_folder=exported,
        ),
    )
    evidence, calibration = fit_on_edits(project, bundle, videos, progress=progress)
    card = (
        f"# Model card: untrained baseline\n\n{packaged_origin(backbone.identity.architecture)}\n\nNothing was trained. "
        f"Whitening and calibration are those of the {len(videos)} videos of this collection.\n"
    )
    complete_bundle(bundle, evidence=evidence, calibration=calibration, card=card)
    return bundle
