"""The untrained baseline as the first champion: it answers before anything is trained, and a trained model has to beat it.

The baseline compares region features as the frozen network gives them (TopK-Chamfer, nothing learned). It is an ordinary
version in the registry, which trained versions have to beat. Its probabilities are fitted on edits of the collection's own
frames, which are made in memory and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from hapvr.augment.settings import ViewsConfig
from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import FeatureStore, collection_shards
from hapvr.data.manifest import training_shard_keys
from hapvr.data.shards import STATUS_OK
from hapvr.model.checkpoint import save_network
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.networks.backbone import Backbone, load_backbone
from hapvr.networks.extract import Frames, choose_device, embed_by_networks, region_embedder
from hapvr.networks.packaged import packaged_origin
from hapvr.networks.views import ViewDrawer, plan_cached_views
from hapvr.networks.whitening import Whitening, load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.registry.versions import WARNING_TAG, champion_of, log_model, register, set_champion, version_tags
from hapvr.scorer.bundle import BundleParts, write_bundle
from hapvr.scorer.calibration import MIN_PAIRS, Calibration, fit_calibration
from hapvr.scorer.description import CARD_FILE
from hapvr.scorer.segments import best_run, relative_frame_matrix
from hapvr.seeding import numpy_rng
from hapvr.steps.calibration import FRAME_PAIRS, FRAME_QUANTILE, MAX_FRAME_THRESHOLD
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.steps.registration import export_onnx
from hapvr.steps.training import MODELS, TrainingRun, tracker_of

KEY = "untrained"
"""Begins the name of the baseline's MLflow run, and of its folder below `models/`."""

WHITENING_TAG = "hapvr.baseline.whitening"
VIDEOS_TAG = "hapvr.baseline.videos"
EDITED_VIDEOS = 40
COMPARED_VIDEOS = 240
"""Videos that edits are compared with, the edited ones among them."""

EDITS = ViewsConfig(num_frames=8, num_weak=1, num_strong=3)
"""The edits of each video: one weak and three strong views, drawn as those of a training are."""

OTHER_FRAMES = 120
"""Frames of a video that is not edited: memory for films would otherwise be gigabytes."""

WARNING = "this model is untrained: it compares videos by the features of the frozen backbone"
RANKED = 10
"""Other videos of each query that the fit sees, the most similar ones: what a search shows, not pairs drawn at random."""

COPY_SIMILARITY = 0.75
"""Two videos of the collection that are as similar as this may be copies of each other; such pairs are not fitted on."""


def ensure_baseline(project: Project, *, progress: Progress = no_progress) -> None:
    """Make the untrained baseline of the project's features champion where there is none, or where the champion is a baseline
    of other features or of far fewer videos; a trained champion stays."""
    with project.root.lock("baseline"):
        tracker, name = tracker_of(project), project.config.tracking.registered_model
        champion = champion_of(tracker.client, name)
        tags = {} if champion is None else version_tags(tracker.client, name, champion.version)
        if champion is not None and WHITENING_TAG not in tags:  # trained
            return
        videos, whitening = _videos(project), load_whitening(project.root)
        wanted = min(COMPARED_VIDEOS, len(videos))
        if tags.get(WHITENING_TAG) != whitening.sha256 or int(tags[VIDEOS_TAG]) * 2 <= wanted:
            version = _register_baseline(project, videos, whitening, progress=progress)
            set_champion(
                tracker.client, name, version, how="baseline", reason="untrained; nothing better was trained yet"
            )


def _register_baseline(project: Project, videos: Mapping[str, str], whitening: Whitening, *, progress: Progress) -> int:
    """videos: shard by id. Returns the version."""
    backbone = load_backbone(project.config.backbone)
    network = SimilarityNetwork(NetworkSettings(attention=False, comparator=False), dims=whitening.dims).eval()
    key = f"{KEY}-{whitening.sha256[:8]}-{len(videos)}"
    folder = project.root.local_path(f"{MODELS}/{key}")
    calibration = calibrate_on_edits(project, videos, network, backbone, whitening, progress=progress)
    tags = {
        "backbone.weights": backbone.identity.source,
        WHITENING_TAG: whitening.sha256,
        VIDEOS_TAG: str(min(COMPARED_VIDEOS, len(videos))),
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
            calibration=calibration,
            card=_card(backbone, calibration, len(videos)),
            onnx=onnx,
            onnx_folder=folder / "exported" if "files" in onnx else None,
        ),
    )
    tracker = tracker_of(project)
    run_id = tracker.start(key, name=f"{project.config.name}-{KEY}", params={}, tags=tags)
    tracker.client.log_artifact(run_id, str(bundle / CARD_FILE))
    uri = log_model(tracker, run_id, bundle)
    tracker.client.set_terminated(run_id)
    name = project.config.tracking.registered_model
    return register(tracker, name, run_id=run_id, model_uri=uri, target=None, tags=tags | {WARNING_TAG: WARNING})


def _card(backbone: Backbone, calibration: Calibration | None, num_videos: int) -> str:
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
        else f"Fitted on {calibration.num_matches} edits of frames of this collection against their originals, and on "
        f"{calibration.num_others} pairs of different videos. The edits are those of a training: crops, colours, texts, "
        "pictures in pictures, other speeds. Real edits differ; test benchmarks were not used.",
        "## Limits",
        "- Not evaluated on any benchmark.\n- Look-alikes (one room, one person, flat graphics) may pass for copies.\n"
        "- Sound is not used. Pictures are centre-cropped.",
    ]
    return "\n\n".join(lines) + "\n"


def _videos(project: Project) -> dict[str, str]:
    """Video id -> shard, of all videos of the training split that have features."""
    training = training_shard_keys(project.root)
    return {
        video_id: key
        for key in collection_shards(project.root)[0]
        if key in training
        for video_id in project.shard(FEATURES_STAGE, key).index().filter(pl.col("status") == STATUS_OK)["video_id"]
    }


def calibrate_on_edits(
    project: Project,
    shard_of: Mapping[str, str],
    network: VideoNetwork,
    backbone: Backbone,
    whitening: Whitening,
    *,
    progress: Progress = no_progress,
) -> Calibration | None:
    """Fit on edits of some videos against their originals (matches) and on the other videos that come next to them; None for
    too few videos.

    The originals are queries as well, since their neighbours are what looks alike in this collection. shard_of: by video id.
    """
    ids = sorted(shard_of)
    ids = [ids[place] for place in numpy_rng(0, "edits").permutation(len(ids))[:COMPARED_VIDEOS]]
    device = choose_device(project.config.device)
    network = network.to(device)
    store = FeatureStore(project.root, sorted({shard_of[video_id] for video_id in ids}))
    with torch.inference_mode():
        edited = ids[:EDITED_VIDEOS]
        originals = {
            video_id: network.embed((regions if video_id in edited else regions[:OTHER_FRAMES]).float().to(device))
            for video_id, regions in store.read(ids)
        }
        embed = region_embedder(backbone, whitening, device)
        edits: list[tuple[str, Tensor]] = []
        clips = _edited_clips(project, {video_id: shard_of[video_id] for video_id in edited}, backbone.crop_px)
        for video_id, (regions,) in embed_by_networks(clips, [embed]):
            edits.append((video_id, network.embed(torch.from_numpy(regions).to(device))))
            progress(len(edits), len(edited) * (EDITS.num_weak + EDITS.num_strong))
        if not edits:
            return None
        score, references = network.packed_scorer(), network.pack([originals[video_id] for video_id in ids])
        by_edit, by_original = (
            score(network.pack(queries), references).double().cpu().numpy()
            for queries in ([clip for _, clip in edits], [originals[video_id] for video_id in ids])
        )
    own = np.array([[video_id == other for other in ids] for video_id, _ in edits])
    unlike = ~np.eye(len(ids), dtype=bool) & (by_original < COPY_SIMILARITY)
    others = np.concatenate([_ranked(by_edit, ~own), _ranked(by_original, unlike)])
    if min(int(own.sum()), len(others)) < MIN_PAIRS:
        return None
    source = {"benchmark": "edits of the collection's own frames", "videos": len(ids), "edited": len(edited)}
    threshold = _frame_threshold(network, [originals[video_id] for video_id in ids])
    return fit_calibration(by_edit[own], others, source=source, frame_threshold=threshold)


def _ranked(similarities: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The RANKED largest of the chosen similarities of each row."""
    return np.concatenate([np.sort(row[mask])[::-1][:RANKED] for row, mask in zip(similarities, chosen, strict=True)])


def _edited_clips(project: Project, shard_of: dict[str, str], size_px: int) -> Iterator[tuple[str, Frames]]:
    """The views [T, 3, size_px, size_px] of each video, by id."""
    for key in sorted(set(shard_of.values())):
        videos = [video_id for video_id in shard_of if shard_of[video_id] == key]
        drawer = ViewDrawer(open_frames(project, key).read, config=EDITS, size_px=size_px)
        for video_id, plans in plan_cached_views(videos, EDITS).items():
            for plan in plans:
                yield video_id, drawer.draw(plan).frames.numpy()


@torch.inference_mode()
def _frame_threshold(network: VideoNetwork, videos: list[Tensor]) -> float:
    """What FRAME_QUANTILE of the pairs of different videos stay below with their most similar consecutive frames."""
    pairs = [(first, second) for second in range(len(videos)) for first in range(second)]
    chosen = numpy_rng(0, "frame threshold").permutation(len(pairs))[:FRAME_PAIRS]
    runs = [best_run(relative_frame_matrix(network, *(videos[one] for one in pairs[place]))) for place in chosen]
    return min(float(np.quantile(runs, FRAME_QUANTILE)), MAX_FRAME_THRESHOLD)
