"""A small collection that can be searched: real clips, their features by the real stages, a bundle, an index."""

from __future__ import annotations

from pathlib import Path

from hapvr.features.backbone import load_backbone
from hapvr.features.whitening import load_whitening
from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.scorer.bundle import write_bundle
from hapvr.scorer.calibration import Calibration, fit_calibration
from hapvr.seeding import torch_rng
from hapvr.stages.features import make_features
from hapvr.stages.frames import make_frames
from hapvr.stages.manifest import make_manifest
from hapvr.stages.project import Project
from hapvr.stages.search_index import update_index
from hapvr.stages.search_model import search_model
from hapvr.stages.videos import make_videos
from hapvr.stages.whitening import make_whitening
from tests.scorer.bundles import write_scenes
from tests.stages.data_projects import folder_settings, open_project

DIMS = 32
LONG = range(100, 140)
"""Pictures of long.mp4, a second each."""


def write_collection(folder: Path) -> Path:
    """long: 40 pictures; part: 12 of them within others; copy: those of short; others: their own."""
    write_scenes(folder / "long.mp4", list(LONG))
    write_scenes(folder / "trips" / "part.mp4", [200, 201, *range(110, 122), 202, 203])
    write_scenes(folder / "short.mp4", list(range(300, 308)))
    write_scenes(folder / "trips" / "copy of short.mp4", list(range(300, 308)), fps=6)
    for number in range(5):
        write_scenes(folder / f"other {number}.mp4", list(range(400 + 20 * number, 410 + 20 * number)))
    return folder


def calibration() -> Calibration:
    """As if matches had similarities about 0.8, others about 0.2; the threshold of segments lies between."""
    steps = [step / 100 for step in range(20)]
    return fit_calibration(
        [0.7 + step for step in steps], [0.1 + step for step in steps] * 4, source={}, frame_threshold=0.6
    )


def make_features_of(project: Project) -> None:
    """All stages up to features."""
    manifest = make_manifest(project)
    for key in manifest.shards:
        make_videos(project, key)
        make_frames(project, key)
    make_whitening(project, list(manifest.training_shards))
    for key in manifest.shards:
        make_features(project, key)


def bundle_of(project: Project, folder: Path, *, seed: int = 0, calibrated: bool = True) -> Path:
    """A bundle for the features of a project; without comparator, and seed 0 without attention, it needs no training."""
    network = SimilarityNetwork(
        NetworkSettings(comparator=False, attention=seed > 0), dims=DIMS, generator=torch_rng(seed, "search")
    )
    return write_bundle(
        folder / f"bundle-{seed}",
        network_folder=save_network(network, folder / f"network-{seed}", metadata={}),
        backbone=load_backbone(project.config.backbone),
        backbone_config=project.config.backbone,
        whitening=load_whitening(project.root),
        sampling=project.config.sampling,
        provenance={},
        calibration=calibration() if calibrated else None,
    )


def searchable_project(folder: Path) -> Project:
    """A project in `folder` with an index over the videos of `write_collection`."""
    videos = write_collection(folder / "videos")
    settings = folder_settings(videos, folder / "data")
    settings["whitening"] = {"dims": DIMS, "max_regions": 2000}
    project = open_project(folder, settings)
    make_features_of(project)
    update_index(project, search_model(project, str(bundle_of(project, folder))))
    return project
