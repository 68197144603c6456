"""Another precision under existing data: what is made anew, what is refused, and what stays as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from hapvr.data.features import STAGE, FeatureFile, FeatureStore
from hapvr.data.manifest import shard_keys
from hapvr.data.shards import Shard
from hapvr.errors import DataError
from hapvr.steps.features import make_features
from hapvr.steps.project import Project
from tests.conftest import write_settings


@pytest.fixture
def project(small_project: Project, tmp_path: Path) -> Project:
    """The small project's data, made in float32, for a test to change."""
    shutil.copytree(small_project.folder / "data", tmp_path / "data")
    return changed(small_project, tmp_path)


def changed(project: Project, folder: Path, **networks: dict[str, object]) -> Project:
    """The project on the data in `folder`, with other settings of its networks."""
    settings = project.config.model_dump(mode="json") | {"data_root": str(folder / "data")}
    for name, values in networks.items():
        settings[name] |= values
    return Project.open(write_settings(folder / "config.yaml", settings), folder=folder)


def test_features_of_another_precision_are_close_made_anew_and_never_mixed(project: Project) -> None:
    """Stored as before, half floats; readers refuse shards of both precisions, whichever comes first."""
    half = changed(project, project.folder, backbone={"precision": "bfloat16"})
    whole = {key: Shard(project.root, STAGE, key) for key in shard_keys(project.root)}
    first, second = list(whole)[:2]
    exact = {
        video: FeatureFile(whole[first]).read(video)[0] for video in FeatureStore(project.root, [first]).available()
    }
    assert make_features(half, first).done
    assert not make_features(half, first).done
    assert whole[first].require({}).settings["backbone"]["precision"] == "bfloat16"
    for video, before in exact.items():
        after = FeatureFile(whole[first]).read(video)[0]
        assert after.dtype == before.dtype
        similarity = F.cosine_similarity(torch.from_numpy(before).float(), torch.from_numpy(after).float(), dim=-1)
        assert similarity.min() > 0.99
    for keys in ([first, second], [second, first]):
        with pytest.raises(DataError, match=r"backbone.precision: .*bfloat16.*Materialise it again, or restore"):
            FeatureStore(project.root, keys)
