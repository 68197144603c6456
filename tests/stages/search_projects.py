"""Projects whose collection can be indexed, and networks that stand for champions."""

from __future__ import annotations

import shutil
from pathlib import Path

from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng
from hapvr.stages.project import Project
from tests.conftest import small_settings
from tests.stages.data_projects import open_project

DIMS = 32


def network_folder(folder: Path, *, seed: int = 0) -> Path:
    """A similarity network of seeded weights, as `--model` takes it."""
    network = SimilarityNetwork(NetworkSettings(), dims=DIMS, generator=torch_rng(seed, "search"))
    return save_network(network, folder / f"network-{seed}", metadata={})


def copied_project(small_project: Project, folder: Path, **search: object) -> Project:
    """A project with the features of `small_project`, in a folder of its own. search: settings of that section."""
    source = small_project.root.local
    assert source is not None
    for stage in ("manifest", "videos", "frames", "whitening", "features"):
        shutil.copytree(source / stage, folder / "data" / stage)
    videos = small_project.path(small_project.config.sources[0].path)
    return open_project(folder, small_settings(videos, folder / "data") | {"search": search})
