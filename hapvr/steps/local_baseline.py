"""The untrained baseline without torch and without a registry: a bundle below `models/`, which the index names by its folder.

It scores as the one of `hapvr.steps.baseline` does. Its probabilities are fitted on the edits that people make of videos
(`hapvr.demo.edits`), done to some of the collection's own frames in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
from numpy.typing import NDArray
from safetensors.numpy import save_file

from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import FeatureFile, collection_shards
from hapvr.data.manifest import training_shard_keys
from hapvr.demo.edits import EDITS as SOFT_EDITS
from hapvr.demo.edits import HARD_EDITS, LIGHT_EDITS, STRONG_EDITS
from hapvr.errors import FULL_HINT, MissingPartError
from hapvr.files import file_sha256
from hapvr.model.description import DESCRIPTION_FILE, WEIGHTS_FILE, NetworkDescription
from hapvr.model.settings import NetworkSettings
from hapvr.networks.extract import open_backbone
from hapvr.networks.packaged import OPSET, PackagedBackbone, packaged_origin
from hapvr.networks.whitening import Whitening, load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.scorer.bundle import BundleParts, write_bundle
from hapvr.scorer.calibration import MIN_PAIRS, Calibration, fit_calibration
from hapvr.scorer.description import ONNX_FOLDER, SCORER_FILE, ONNXRecord
from hapvr.scorer.onnx_networks import ONNXNetworks
from hapvr.scorer.segments import best_run, relative_similarity
from hapvr.seeding import numpy_rng
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.video.frames import center_crop, decode_jpegs

KEY = "untrained"
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

COMPARED_VIDEOS = 120
EDITED_VIDEOS = 20
EDITED_FRAMES = 12
EDITS_EACH = 4
FRAME_QUANTILE, MAX_FRAME_THRESHOLD = 0.95, 0.98
"""As in `hapvr.steps.calibration`."""

RANKED = 10
"""Other videos of each query that the fit sees, the most similar ones."""

COPY_SIMILARITY = 0.75
"""Two videos of the collection that are as similar as this may be copies of each other; such pairs are not fitted on."""


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
        whitening, videos = load_whitening(root), _videos(project)
        models, begins = root.local_path("models"), f"{KEY}-{whitening.sha256[:8]}-"
        known = [int(name.removeprefix(begins)) for name in root.list_folders("models") if name.startswith(begins)]
        made = max(
            (count for count in known if (models / f"{begins}{count}/bundle/{SCORER_FILE}").is_file()), default=0
        )
        if made * 2 > min(COMPARED_VIDEOS, len(videos)):
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
    files = {}
    for name, graph in {"backbone.onnx": backbone.graph(whitening), **graphs}.items():
        file = exported / ONNX_FOLDER / name
        file.write_bytes(graph.SerializeToString())
        files[name] = {"sha256": file_sha256(file), "bytes": file.stat().st_size}
    record = {"opset": OPSET, "settings": SETTINGS.model_dump(mode="json"), "files": files}
    networks = ONNXNetworks(exported, ONNXRecord.model_validate(record), precision=backbone.precision)
    return write_bundle(
        folder / "bundle",
        BundleParts(
            network_folder=network,
            backbone=backbone,
            whitening=whitening,
            sampling=project.config.sampling,
            serving=project.config.serving,
            calibration=_calibration(project, videos, networks, backbone.crop_px, progress),
            card=f"# Model card: untrained baseline\n\n{packaged_origin(backbone.identity.architecture)}\n\nNothing was "
            f"trained. Whitening and calibration are those of the {len(videos)} videos of this collection.\n",
            onnx=record,
            onnx_folder=exported,
        ),
    )


def _videos(project: Project) -> dict[str, str]:
    """Video id -> shard, of all videos of the training split that have features."""
    training = training_shard_keys(project.root)
    shards = [key for key in collection_shards(project.root)[0] if key in training]
    return {video_id: key for key in shards for video_id in FeatureFile(project.shard(FEATURES_STAGE, key)).video_ids}


def _calibration(
    project: Project, videos: dict[str, str], networks: ONNXNetworks, crop_px: int, progress: Progress
) -> Calibration | None:
    """Fit on edits of some videos against their originals, and on the other videos that come next to them; None for too few
    videos. videos: shard by id."""
    ids = sorted(videos)
    ids = [ids[place] for place in numpy_rng(0, "edits").permutation(len(ids))[:COMPARED_VIDEOS]]
    files = {key: FeatureFile(project.shard(FEATURES_STAGE, key)) for key in {videos[one] for one in ids}}
    originals = [networks.embed(files[videos[one]].regions(one)[:COMPARED_VIDEOS]) for one in ids]
    places, edits = [], []
    for place, frames in _edited(project, videos, ids[:EDITED_VIDEOS], crop_px):
        places.append(place)
        edits.append(networks.embed(networks.regions(frames)))
        progress(len(edits), min(EDITED_VIDEOS, len(ids)) * EDITS_EACH)
    by_edit, by_original = (
        np.array([networks.similarities(one, originals) for one in queries]) for queries in (edits, originals)
    )
    own = np.array(places)[:, None] == np.arange(len(ids))
    unlike = ~np.eye(len(ids), dtype=bool) & (by_original < COPY_SIMILARITY)
    others = np.concatenate([_ranked(by_edit, ~own), _ranked(by_original, unlike)])
    if min(int(own.sum()), len(others)) < MIN_PAIRS:
        return None
    selves = [networks.self_similarity(video) for video in originals]
    runs = [
        best_run(
            relative_similarity(networks.frame_similarity(originals[one], originals[other]), selves[one], selves[other])
        )
        for other in range(min(len(ids), EDITED_VIDEOS))
        for one in range(other)
    ]
    threshold = min(float(np.quantile(runs, FRAME_QUANTILE)), MAX_FRAME_THRESHOLD)
    source = {
        "benchmark": "edits of the collection's own frames",
        "videos": len(ids),
        "edited": min(EDITED_VIDEOS, len(ids)),
    }
    return fit_calibration(by_edit[own].astype(float), others.astype(float), source=source, frame_threshold=threshold)


def _edited(
    project: Project, videos: dict[str, str], ids: list[str], crop_px: int
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """EDITS_EACH edits of each video, [T, 3, crop_px, crop_px], with its place in `ids`."""
    all_edits, fps = SOFT_EDITS | HARD_EDITS, project.config.sampling.fps
    donor = np.zeros((1, 64, 64, 3), np.uint8)
    for place, video_id in enumerate(ids):
        jpegs, rng = open_frames(project, videos[video_id]).read(video_id).jpegs, numpy_rng(0, "edits", video_id)
        start = int(rng.integers(max(len(jpegs) - EDITED_FRAMES, 0) + 1))
        frames = np.ascontiguousarray(decode_jpegs(jpegs[start : start + EDITED_FRAMES]).transpose(0, 2, 3, 1))
        kinds = [*rng.choice(LIGHT_EDITS, 1), *rng.choice([*STRONG_EDITS, *HARD_EDITS], EDITS_EACH - 1, replace=False)]
        for kind in kinds:
            changed = all_edits[str(kind)].apply(frames, donor, fps, rng)
            yield place, center_crop(np.ascontiguousarray(changed.transpose(0, 3, 1, 2)), crop_px)
        donor = frames


def _ranked(similarities: NDArray[np.float32], chosen: NDArray[np.bool_]) -> NDArray[np.float32]:
    """The RANKED largest of the chosen similarities of each row."""
    return np.concatenate([np.sort(row[mask])[::-1][:RANKED] for row, mask in zip(similarities, chosen, strict=True)])
