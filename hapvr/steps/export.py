"""A trained network as a bundle: what registrations and the baseline share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hapvr.data.features import STAGE as FEATURES_STAGE, FeatureStore
from hapvr.errors import DataError
from hapvr.model.checkpoint import load_network
from hapvr.networks.encoder import FrameEncoder, open_reference_encoder
from hapvr.networks.whitening import load_whitening
from hapvr.scorer.bundle_writer import BundleParts, write_bundle
from hapvr.scorer.description import SCORER_FILE
from hapvr.scorer.torch_networks import write_onnx
from hapvr.steps.frames import open_frames
from hapvr.steps.model_places import MODELS
from hapvr.steps.project import Project
from hapvr.steps.whitening import squares

CHECKED_VIDEOS = 4
CHECKED_FRAMES = 6
"""Frames checked per video: torch takes half a second for a frame."""


def export_onnx(project: Project, folder: Path) -> dict[str, Any]:
    """Write the model of the network in `folder` to `exported` there. Returns what `write_onnx`
    does, or `{"reason": ...}` if it is not exported.

    All pairs of CHECKED_VIDEOS videos are compared, by their first frames and by their stored
    features.
    """
    if not project.config.tracking.onnx:
        return {"reason": "tracking.onnx is false"}
    encoder = open_reference_encoder(project.config.backbone)
    frames: list[Tensor] = []
    features: list[Tensor] = []
    for pictures, regions in _checked_videos(project, encoder):
        frames.append(pictures)
        features.append(regions)

    try:
        return write_onnx(
            folder / "exported",
            encoder=encoder,
            whitening=load_whitening(project.root),
            network=load_network(folder / "network")[0],
            frames=frames,
            features=features,
        )
    except DataError as error:  # also of an operation that the files may not have
        return {"reason": str(error)}


def _checked_videos(project: Project, encoder: FrameEncoder) -> Iterator[tuple[Tensor, Tensor]]:
    """Pictures [N, 3, S, S] and features [T, R, D] of the first videos with the project's
    whitening."""
    wanted = load_whitening(project.root).sha256
    left = CHECKED_VIDEOS
    for key in project.root.list_folders(FEATURES_STAGE):
        provenance = project.shard(FEATURES_STAGE, key).provenance()
        if not left or provenance is None or provenance.settings.get("whitening") != wanted:
            continue
        store = FeatureStore(project.root, [key])
        reader = open_frames(project, key)
        for video_id, regions in store.read(sorted(store.available())[:left]):
            jpegs = reader.read(video_id).jpegs[:CHECKED_FRAMES]
            pictures = squares(jpegs, encoder.crop_px, project.config.backbone.picture)
            yield torch.from_numpy(pictures), regions
            left -= 1


def write_run_bundle(
    project: Project,
    folder: Path,
    encoder: FrameEncoder,
    onnx: Mapping[str, Any],
    **parts: Any,
) -> Path:
    """The bundle of the network below the folder of a run. onnx: what `export_onnx` returned;
    parts: more of `BundleParts`."""
    bundle_parts = BundleParts(
        network_folder=folder / "network",
        encoder=encoder,
        whitening=load_whitening(project.root),
        sampling=project.config.sampling,
        serving=project.config.serving,
        onnx=onnx,
        onnx_folder=folder / "exported" if onnx.get("files") else None,
        **parts,
    )
    bundle = write_bundle(folder / "bundle", bundle_parts)
    project.root.note_made(f"{MODELS}/{folder.name}/bundle/{SCORER_FILE}")
    return bundle
