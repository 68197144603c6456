"""A step is declared in one class and named in the chain: verbs, status, automation, stores and
assets follow."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest

from assets.factory import plain_assets
from hapvr.care.stores import shard_stores
from hapvr.chain import CHAIN, chain_status
from hapvr.chain.look import Look
from hapvr.chain.step import ShardStep, shards_of
from hapvr.data.frames import frames_digest
from hapvr.data.shard_build import ShardRecipe, StageResult, VideoEntry, build_shard, failed_rows
from hapvr.data.shards import STATUS_OK, frame_columns, frame_fields, index_row
from hapvr.errors import DamagedError
from hapvr.progress import Progress, no_progress
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.video.frames import luma
from tests.commands.conftest import invoke
from tests.steps.search_projects import copied_project

NAME = "brightness"


class Brightness(ShardStep):
    """The mean grey level of every frame."""

    name = NAME
    job = "extract"
    does = "measures how bright frames are"
    inputs = ("frames",)
    shards = "all"

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> StageResult:
        """A row per frame."""
        rows = project.shard("frames", key).rows()
        file = open_frames(project, key)

        def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
            for video_id in video_ids:
                video = file.read(video_id)
                levels = [luma(jpeg).mean() for jpeg in video.jpegs]
                values = np.array(levels, np.float32)
                row = index_row(video_id, len(levels))
                yield row, frame_columns(video_id, video.timestamps_s, values)

        recipe = ShardRecipe(
            shard=project.shard(self.name, key),
            settings={},
            inputs={"frames": frames_digest(project.shard("frames", key))},
            columns=frame_fields(pa.field("level", pa.float32(), nullable=False)),
        )
        return build_shard(
            recipe,
            video_ids=[row["video_id"] for row in rows if row["status"] == STATUS_OK],
            make=make,
            lost=failed_rows(rows),
            progress=progress,
        )


@pytest.fixture
def project(small_project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """One whose chain has the step, which was not made yet."""
    monkeypatch.setitem(CHAIN, NAME, Brightness())
    return copied_project(small_project, tmp_path)


def make(project: Project) -> list[StageResult]:
    step = CHAIN[NAME]
    return [step.run(project, key) for key in shards_of(project, step)]


def progress_of(project: Project) -> tuple[int, int]:
    """How many of its shards are done, and how many are missing."""
    (status,) = (status for status in chain_status(project) if status.step == NAME)
    return status.done, status.missing


def test_its_status_counts_shards(project: Project) -> None:
    num_shards = len(shards_of(project, CHAIN[NAME]))
    assert progress_of(project) == (0, num_shards)
    make(project)
    assert progress_of(project) == (num_shards, 0)


def test_a_shard_is_asked_for_where_its_input_is_another(project: Project) -> None:
    make(project)
    assert CHAIN[NAME].lacks(Look(project)) == {}
    (key, *_) = shards_of(project, CHAIN[NAME])
    project.root.delete(project.shard(NAME, key).index_name)
    assert CHAIN[NAME].lacks(Look(project)) == {key: frames_digest(project.shard("frames", key))}


def test_it_is_run_by_name(project: Project) -> None:
    invoke("run", NAME, "--config", str(project.folder / "config.yaml"))
    assert progress_of(project)[1] == 0


def test_what_it_stores_is_verified(project: Project) -> None:
    make(project)
    store = shard_stores(CHAIN.values(), besides=())[NAME]
    (key, *_) = store.keys(project.root)
    store.check(project.root, key)
    data = project.root.local_path(project.shard(NAME, key).data_name)
    data.write_bytes(bytes(len(data.read_bytes())))
    with pytest.raises(DamagedError):
        store.check(project.root, key)


def test_it_has_an_asset(project: Project) -> None:
    """Beside those of which modules of assets say more."""
    (asset,) = plain_assets(CHAIN.keys() - {NAME})
    assert asset.key == dg.AssetKey(NAME)
    assert [dep.asset_key for dep in asset.specs_by_key[asset.key].deps] == [dg.AssetKey("frames")]
