"""A trained model as ONNX files, checked on videos of the project."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from hapvr.data.features import STAGE, FeatureStore
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.model.checkpoint import load_network
from hapvr.networks.backbone import Backbone, center_crop, decode_frames
from hapvr.networks.whitening import Whitening, load_whitening
from hapvr.scorer.onnx_export import NotExported, write_onnx
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.steps.training import TrainingRun

CHECKED_VIDEOS = 4
CHECKED_FRAMES = 6
"""Frames checked per video: torch takes half a second for a frame."""


def export_onnx(project: Project, run: TrainingRun, folder: Path, *, backbone: Backbone) -> dict[str, Any]:
    """What `write_onnx` returns for the run's model, or `{"reason": ...}` where it cannot be exported or shall not be.

    All pairs of the first CHECKED_VIDEOS videos are compared, by their first frames and by their stored features.
    """
    if not project.config.tracking.onnx:
        return {"reason": "tracking.onnx is false"}
    whitening = load_whitening(project.root)
    try:
        return write_onnx(
            folder,
            backbone=backbone,
            whitening=whitening,
            network=load_network(run.network_folder)[0],
            frames=list(itertools.islice(_crops(project, backbone.crop_px), CHECKED_VIDEOS)),
            features=list(itertools.islice(_features(project, whitening), CHECKED_VIDEOS)),
        )
    except NotExported as error:
        return {"reason": str(error)}


def _crops(project: Project, crop_px: int) -> Iterator[Tensor]:
    """The first frames of each video, [N, 3, crop_px, crop_px] uint8."""
    for key in sorted(project.root.list_folders(FRAMES_STAGE)):
        reader = open_frames(project, key)
        for video_id in reader.video_ids:
            yield center_crop(decode_frames(reader.read(video_id).jpegs[:CHECKED_FRAMES]), crop_px)


def _features(project: Project, whitening: Whitening) -> Iterator[Tensor]:
    """The stored features of each video, [T, R, D], of the shards that are finished and have this whitening."""
    for key in sorted(project.root.list_folders(STAGE)):
        found = project.shard(STAGE, key).provenance()
        if found is not None and found.settings.get("whitening") == whitening.sha256:
            store = FeatureStore(project.root, [key])
            for _, regions in store.read(sorted(store.available())[:CHECKED_VIDEOS]):
                yield regions
