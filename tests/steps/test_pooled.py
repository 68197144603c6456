"""Pooled vectors and magnitudes beside features and views (`features.pooled`)."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hapvr.data.features import FeatureFile, FeatureStore
from hapvr.data.manifest import shard_keys
from hapvr.model.family import join_extras, split_extras
from hapvr.model.settings import extras_rows
from hapvr.networks.backbone import frame_extras, load_backbone, pooled_maps
from hapvr.networks.settings import BackboneConfig
from hapvr.steps.project import Project

CHANNELS = 368
"""Of the last four scales of timm's smallest ResNet."""


@pytest.mark.parametrize(("extras_dims", "dims"), [(CHANNELS, 32), (31, 32)])
def test_side_comes_back(extras_dims: int, dims: int) -> None:
    """Joined and split again, in half precision, for sizes that fill the last row and that do
    not."""
    generator = torch.Generator().manual_seed(extras_dims)
    regions = torch.randn(3, 5, 9, dims, generator=generator).half()
    pooled = torch.randn(3, 5, extras_dims, generator=generator).half()
    magnitude = torch.rand(3, 5, generator=generator).half()
    joined = join_extras(regions, pooled, magnitude)
    assert joined.shape == (3, 5, 9 + extras_rows(extras_dims, dims), dims)
    separated = split_extras(joined, extras_dims=extras_dims)
    assert all(map(torch.equal, separated, (regions, pooled, magnitude)))


def test_the_backbone_gives_both_at_once() -> None:
    """Regions are those without; the pooled vector is their mean of unit length; the magnitude is
    of the raw mean."""
    config = {
        "architecture": "test_resnet.r160_in1k",
        "weights": {"source": "random", "seed": 1},
        "crop_px": 128,
    }
    backbone = load_backbone(BackboneConfig.model_validate(config))
    frames = torch.randint(
        0, 256, (3, 3, 128, 128), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
    )
    frames[2] = 0
    vectors = backbone.regions_and_means(frames)
    regions = vectors[:, :9]
    pooled, magnitude = frame_extras(vectors)
    assert torch.equal(regions, backbone.regions(frames))
    mean = regions.mean(1)
    assert_close(pooled, mean / mean.norm(dim=-1, keepdim=True))
    maps = pooled_maps(backbone.output(frames))
    raw = torch.cat([values.flatten(2) for values in maps], dim=1)
    assert raw.shape == (3, CHANNELS, 9)
    assert_close(magnitude, raw.mean(2).square().sum(1).sqrt())


@pytest.mark.slow
def test_stored_features_have_frame_extras(pooled_project: Project, small_project: Project) -> None:
    """Regions are those of features without; every frame has a pooled vector of unit length and a
    magnitude."""
    keys = shard_keys(pooled_project.root)
    store = FeatureStore(pooled_project.root, keys)
    plain = FeatureStore(small_project.root, keys)
    wanted = dict(plain.read(sorted(plain.available())))
    features = dict(store.read(sorted(store.available()), extras=True))
    assert features.keys() == wanted.keys()
    for video_id, values in features.items():
        regions, pooled, magnitude = split_extras(values, extras_dims=CHANNELS)
        assert torch.equal(regions, wanted[video_id])
        assert_close(pooled.float().norm(dim=-1), torch.ones(len(values)), rtol=2e-3, atol=2e-3)
        assert bool((magnitude > 0).all())

    shard = pooled_project.shard("features", keys[0])
    video_id = next(iter(shard.read().places()))
    assert np.array_equal(
        FeatureFile(shard, extras=True).regions(video_id, 0, 1), features[video_id][:1].numpy()
    )
