"""What training refuses, and what it survives with a message."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric

from hapvr.config import Config
from hapvr.config_file import dump_config
from hapvr.errors import DataError
from hapvr.provenance import Provenance, environment
from hapvr.stages.project import Project
from hapvr.stages.training import prepare_training, training_shards
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.manifest import read_manifest
from hapvr.storage.shards import Shard
from hapvr.train.batch import BatchSampler
from hapvr.train.cached_views import CachedViews
from hapvr.train.guards import OutOfMemoryError, actionable_errors
from hapvr.train.mined_pairs import MinedPairs, write_mined_pairs
from hapvr.train.source import open_source
from tests.conftest import CHECKOUT
from tests.train.runs import with_train

STAGES = ("training_views", "teacher_embeddings", "pseudo_labels")


@pytest.fixture
def copied(small_project: Project, tmp_path: Path) -> Project:
    """The small project's training data, which a test may spoil."""
    for name in ("manifest", "whitening", *STAGES):
        shutil.copytree(small_project.root.local_path(name), tmp_path / name)
    return Project(small_project.config, DataRoot(tmp_path), small_project.folder)


def views_of(project: Project, shards: list[str] | None = None) -> CachedViews:
    keys = training_shards(project) if shards is None else shards
    return CachedViews(project.root, keys, project.config)


def rewrite_settings(shard: Shard, **changes: object) -> None:
    """Say that a shard was made with other settings."""
    found = shard.require({})
    settings = {**found.settings, **changes}
    shard.write_index(
        shard.index().to_dicts(), provenance=Provenance(shard.stage, settings, found.inputs, environment())
    )


def test_no_training_videos(copied: Project) -> None:
    """A manifest without any says which key of the configuration gives some."""
    for key in read_manifest(copied.root).filter(split="train")["shard"].unique().to_list():
        shutil.rmtree(copied.root.local_path(f"manifest/{key}"))
    with pytest.raises(DataError, match="no training videos; run `hapvr download` with a source whose split is train"):
        prepare_training(copied, "none", tags={})


def test_shards_without_views_name_the_stages(copied: Project) -> None:
    """Training videos that have no views yet say what to materialise."""
    shutil.rmtree(copied.root.local_path("training_views"))
    with pytest.raises(DataError, match="has training_views and pseudo_labels; materialise them first"):
        prepare_training(copied, "none", tags={})


def test_one_video_has_no_negatives() -> None:
    """One video alone, or one for each of two processes, cannot be trained on."""
    with pytest.raises(DataError, match=r"1 training videos .* at least 2; add videos"):
        BatchSampler(["a"], batch_videos=4, seed=0)
    with pytest.raises(DataError, match=r"3 training videos .* at least 4"):
        BatchSampler(["a", "b", "c"], batch_videos=4, seed=0, world_size=2)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("itself", "is a video and itself"),
        ("test", "is no training video of this collection"),
        ("another collection's", "is no training video of this collection"),
    ],
)
def test_mined_pairs_of_other_videos_are_refused(copied: Project, other: str, message: str) -> None:
    """A stored pair of a video with itself, with one of a benchmark, or with one of another collection is named."""
    manifest = read_manifest(copied.root)
    first = manifest.filter(split="train")["video_id"][0]
    second = {"itself": first, "test": manifest.filter(split="test")["video_id"][0]}.get(other, "elsewhere/a.mp4")
    project = Project(with_train(copied, mined_pairs=True), copied.root, copied.folder)
    folder = copied.root.local_path("models/mined")
    folder.mkdir(parents=True)
    write_mined_pairs(folder, MinedPairs(((first, second),), "models:/hapvr/1", 0, None))
    with pytest.raises(
        DataError, match=rf"mined_pairs\.json: the pair {first}, {second}.*{message}; start the training again"
    ):
        prepare_training(project, "mined", tags={})


def test_fewer_videos_than_a_batch_train_with_smaller_batches() -> None:
    """The batch shrinks to the collection, and to what processes can share."""
    assert BatchSampler(["a", "b", "c"], batch_videos=64, seed=0).batch_videos == 3
    assert BatchSampler(list("abcde"), batch_videos=64, seed=0, world_size=2).batch_videos == 4


def test_views_of_another_backbone_are_refused(copied: Project) -> None:
    """Shards that were made by different networks are not mixed; the message names both."""
    first, second = training_shards(copied)[:2]
    shard = Shard(copied.root, "training_views", second)
    features = shard.require({}).settings["features"]
    rewrite_settings(shard, features={**features, "backbone": {**features["backbone"], "sha256": "0" * 64}})
    with pytest.raises(DataError, match=rf"{second} are of another feature version than those of {first}: .*sha256"):
        views_of(copied)


def test_views_of_another_whitening_are_refused(copied: Project) -> None:
    """Views from before a new whitening do not go together with benchmarks and models of the new one."""
    for key in training_shards(copied):
        shard = Shard(copied.root, "training_views", key)
        rewrite_settings(shard, features={**shard.require({}).settings["features"], "whitening": "0" * 64})
    with pytest.raises(DataError, match="of another feature version: whitening 000000000000"):
        prepare_training(copied, "old-whitening", tags={})


def test_missing_pseudo_labels_are_named(copied: Project) -> None:
    """A video whose labels do not cover all pairs of its views is named, with the numbers."""
    key = training_shards(copied)[0]
    shard = Shard(copied.root, "pseudo_labels", key)
    rows = shard.index().to_dicts()
    rows[0]["num_rows"] -= 3
    shard.write_index(rows, provenance=shard.require({}))
    with pytest.raises(
        DataError, match=rf"{rows[0]['video_id']} of shard {key} has 3 views and 6 pseudo labels, wanted 9"
    ):
        views_of(copied)


def test_labels_of_other_embeddings_are_refused(copied: Project) -> None:
    """Pseudo labels that were made of other embeddings than those there are no labels for these views."""
    first, second = training_shards(copied)[:2]
    for name in ("index.parquet", "data.parquet"):
        shutil.copy(
            copied.root.local_path(f"teacher_embeddings/{second}/{name}"),
            copied.root.local_path(f"teacher_embeddings/{first}/{name}"),
        )
    with pytest.raises(DataError, match="not of the same views; materialise both again"):
        views_of(copied, [first])


def test_online_views_of_frames_that_are_not_stored_are_refused(copied: Project) -> None:
    """Online training reads frames in every step: without stored ones it names the setting."""
    shutil.copytree(copied.folder / "data" / "frames", copied.root.local_path("frames"))
    key = training_shards(copied)[0]
    rewrite_settings(Shard(copied.root, "frames", key), stored=False)
    config = with_train(copied, source="online")
    with pytest.raises(DataError, match=rf"frames of shard {key} are not stored.*sampling\.store_frames"):
        open_source(config, copied.root, training_shards(copied), Fabric(accelerator="cpu", devices=1))


def test_more_views_than_are_cached_are_refused_by_the_configuration(small_project: Project) -> None:
    """The message names both keys, and the way out."""
    data = small_project.config.model_dump()
    data["train"]["strong_views"] = 3
    with pytest.raises(ValueError, match=r"train\.strong_views 3 .* views\.num_strong 2.*online"):
        Config.model_validate(data)


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        MemoryError(),
    ],
)
def test_out_of_memory_names_the_setting(error: BaseException) -> None:
    """Whatever ran out, the message says what to lower."""
    message = r"step 3: out of memory with batches of 128 videos.*Lower train\.batch_videos"
    with pytest.raises(OutOfMemoryError, match=message), actionable_errors(3, num_videos=128, compiled=False):
        raise error


def test_other_errors_pass_through() -> None:
    """A wrong shape is no lack of memory."""
    with pytest.raises(RuntimeError, match="shapes"), actionable_errors(3, num_videos=8, compiled=False):
        torch.ones(2, 3) @ torch.ones(2, 3)


@pytest.mark.slow
def test_training_that_runs_out_of_memory_says_so(small_project: Project, tmp_path: Path) -> None:
    """A process whose address space is nearly used up ends with the message, not with a trace."""
    (tmp_path / "config.yaml").write_text(dump_config(with_train(small_project)), encoding="utf-8")
    code = f"""
import resource, sys
from pathlib import Path
import torch
from hapvr.errors import HapvrError
from hapvr.stages.project import Project
from tests.train.runs import run
torch.set_num_threads(1)
project = Project.open(Path({str(tmp_path / "config.yaml")!r}), folder=Path({str(small_project.folder)!r}))
import hapvr.model.network as network
before = network.SimilarityNetwork.compare
def limited(self, query, reference, **masks):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, resource.RLIM_INFINITY))
    clips = query.repeat(400, 1, 1, 1)
    return before(self, clips, clips)
network.SimilarityNetwork.compare = limited
try:
    run(project, Path({str(tmp_path / "run")!r}))
except HapvrError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CHECKOUT, check=False)
    assert done.returncode == 1
    assert "training: step 0: out of memory with batches of 4 videos" in done.stderr
    assert "Lower train.batch_videos" in done.stderr
