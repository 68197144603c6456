"""A project whose features and views are written as they are, without videos: training reads no
more than these."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.config import Config
from hapvr.config_file import parse_config
from hapvr.data.features import (
    EXTRAS_SETTING,
    STAGE,
    VIEW_INDEX_COLUMNS,
    VIEWS_STAGE,
    fields,
    view_fields,
)
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import TRAIN, ManifestRow, write_manifest_shard
from hapvr.data.shards import Shard, frame_columns, index_row
from hapvr.model.family import join_extras
from hapvr.networks.whitening import Whitening, save_whitening
from hapvr.provenance import Provenance
from hapvr.seeding import torch_rng
from hapvr.steps.project import Project

DIMS = 32
POOLED_DIMS = 60
NUM_FRAMES = 6
"""Of each video, one a second."""
VIDEOS = tuple(f"own/{name}.mp4" for name in "abcdefghi")
SHARDS = {"own-00000": VIDEOS[:5], "own-00001": VIDEOS[5:]}


def empty_project(folder: Path) -> Project:
    """A configuration of small clips, and a whitening that changes nothing."""
    train = {"steps": 8, "batch_videos": 2, "data_workers": 0, "validate_every_steps": 4}
    config = parse_config(
        {
            "name": "written",
            "data_root": "data",
            "device": "cpu",
            "sources": [{"kind": "folder", "name": "own", "path": "videos", "split": "train"}],
            "features": {"pooled": True},
            "views": {"num_frames": 4, "num_weak": 1, "num_strong": 1},
            "train": {**train, "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2}},
        },
        origin="written",
    )
    project = Project(config, DataRoot(folder / "data"), folder)
    axes = np.eye(DIMS, dtype=np.float32)
    same = Whitening(np.zeros(DIMS, np.float32), axes, np.ones(DIMS, np.float32))
    save_whitening(project.root, same, Provenance("whitening", {}))
    return project


def written_project(folder: Path) -> Project:
    """`empty_project` with two shards of features and views with frame extras."""
    project = empty_project(folder)
    for key, videos in SHARDS.items():
        features = {video: features_of(video, NUM_FRAMES) for video in videos}
        write_features(project.root, key, features)
        _write_views(project.root, key, videos, project.config)

    return project


def features_of(name: str, num_frames: int) -> Tensor:
    """[T, 9 + k, D] fp16: unit regions near a direction of the video, and frame extras."""
    rng = torch_rng(name)
    own = torch.randn(DIMS, generator=rng)
    regions = F.normalize(own + torch.randn(num_frames, 9, DIMS, generator=rng), dim=-1)
    pooled = F.normalize(torch.randn(num_frames, POOLED_DIMS, generator=rng), dim=-1)
    magnitude = torch.rand(num_frames, generator=rng) * 80
    return join_extras(regions, pooled, magnitude).half()


def write_features(root: DataRoot, key: str, features: Mapping[str, Tensor]) -> None:
    """A shard of the training split with these features, [T, 9 + k, D] of each video."""
    rows = [ManifestRow(video, "own", TRAIN, key, video) for video in features]
    write_manifest_shard(root, key, rows)
    shard = Shard(root, STAGE, key)
    _, num_rows, dims = next(iter(features.values())).shape
    with shard.write_data(fields(num_regions=num_rows, dims=dims)) as write:
        for video, values in features.items():
            times = [float(second) for second in range(len(values))]
            write(frame_columns(video, times, [0] * len(values), values.half().numpy()))

    settings = {"backbone": {"sha256": "0" * 64, "source": "random"}, EXTRAS_SETTING: POOLED_DIMS}
    index = [index_row(video, len(values)) for video, values in features.items()]
    shard.write_index(index, provenance=Provenance(STAGE, settings))


def _write_views(root: DataRoot, key: str, videos: tuple[str, ...], config: Config) -> None:
    shard = Shard(root, VIEWS_STAGE, key)
    num_views = config.views.num_weak + config.views.num_strong
    size = config.views.num_frames
    num_rows = features_of("any", 1).shape[1]
    with shard.write_data(view_fields("regions", shape=(size, num_rows, DIMS))) as write:
        for video in videos:
            values = torch.stack([features_of(f"{video} {n}", size) for n in range(num_views)])
            write([[video] * num_views, [""] * num_views, values.numpy()])

    settings = {"views": config.views.model_dump(mode="json"), EXTRAS_SETTING: POOLED_DIMS}
    rows = [index_row(video, num_views, num_frames=NUM_FRAMES) for video in videos]
    shard.write_index(rows, provenance=Provenance(VIEWS_STAGE, settings), fields=VIEW_INDEX_COLUMNS)
