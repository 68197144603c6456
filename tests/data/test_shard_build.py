"""The skeleton that every stage uses: what is made, what is taken over, and what an interrupted run
leaves."""

from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import pytest

from hapvr.data.features import FeatureFile, fields
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import ManifestRow, write_manifest_shard
from hapvr.data.shard_build import (
    IndexRow,
    ShardRecipe,
    StageResult,
    VideoEntry,
    build_shard,
    build_shards,
)
from hapvr.data.shards import Shard, frame_columns, index_row
from hapvr.files import PART_SUFFIX
from hapvr.provenance import Provenance


class Maker:
    """Makes two rows of value `value` for each video, and remembers which videos it was asked
    for."""

    def __init__(self, value: float, *, dies_at: str = "") -> None:
        self.value = value
        self.dies_at = dies_at
        self.asked: list[str] = []

    def __call__(self, video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        self.asked = list(video_ids)
        for video_id in video_ids:
            if video_id == self.dies_at:
                raise RuntimeError("plug pulled")
            yield self.entry(video_id)

    def entry(self, video_id: str) -> VideoEntry:
        return index_row(video_id, 2), frame_columns(
            video_id, [0.0, 1.0], [0, 0], np.full((2, 3, 4), self.value)
        )


def recipe(
    root: DataRoot, *, settings: int = 1, inputs: str = "", stage: str = "features"
) -> ShardRecipe:
    return ShardRecipe(
        shard=Shard(root, stage, "s-00000"),
        settings={"a": settings},
        inputs={"videos": inputs},
        columns=fields(num_regions=3, dims=4),
    )


def build(
    of: ShardRecipe,
    maker: Maker,
    video_ids: Sequence[str],
    keep: Sequence[str] = (),
    *,
    retry: bool = False,
) -> StageResult:
    """Build a shard of these videos; rows of the videos `keep` hold."""

    def reuse(row: IndexRow, _: Provenance) -> bool:
        return row["video_id"] in keep

    return build_shard(of, video_ids=video_ids, make=maker, reuse=reuse, retry=retry)


def values(shard: Shard) -> dict[str, float]:
    file = FeatureFile(shard)
    return {
        row["video_id"]: float(file.regions(row["video_id"]).mean())
        for row in shard.index().iter_rows(named=True)
    }


def test_a_finished_shard_is_left_alone(tmp_path: Path) -> None:
    """Equal settings and inputs make nothing; with `retry` only the refused videos are made."""
    root = DataRoot(tmp_path)
    assert build(recipe(root), Maker(1), ["a", "b"]) == StageResult(
        recipe(root).shard, True, 2, 0, 4
    )
    again = Maker(2)
    assert not build(recipe(root), again, ["a", "b"]).done
    assert not build(recipe(root), again, ["a", "b"], keep=["a", "b"], retry=True).done
    assert again.asked == []
    assert build(recipe(root), again, ["a", "b"], keep=["a"], retry=True).done
    assert again.asked == ["b"]
    assert values(recipe(root).shard) == {"a": 1, "b": 2}


def test_unchanged_rows_are_copied_and_only_the_others_made(tmp_path: Path) -> None:
    """New inputs keep the rows that `reuse` accepts, in the new order; other settings keep none."""
    root = DataRoot(tmp_path)
    build(recipe(root), Maker(1), ["a", "b", "c"])
    maker = Maker(2)
    assert build(recipe(root, inputs="new"), maker, ["d", "c", "a"], keep=["a", "c"]).done
    assert maker.asked == ["d"]
    assert values(recipe(root).shard) == {"d": 2, "c": 1, "a": 1}
    build(recipe(root, settings=2), maker, ["c", "a"], keep=["a", "c"])
    assert maker.asked == ["c", "a"]
    assert values(recipe(root).shard) == {"c": 2, "a": 2}


def test_a_run_that_dies_changes_nothing(tmp_path: Path) -> None:
    """What was finished before is still there, and no part of a file is left."""
    root = DataRoot(tmp_path)
    build(recipe(root), Maker(1), ["a", "b"])
    before = recipe(root).shard.digest()
    with pytest.raises(RuntimeError, match="plug pulled"):
        build(recipe(root, inputs="new"), Maker(2, dies_at="b"), ["a", "b"])
    assert recipe(root).shard.digest() == before
    assert values(recipe(root).shard) == {"a": 1, "b": 1}
    assert list(tmp_path.rglob(f"*{PART_SUFFIX}")) == []


def test_two_shards_are_made_in_one_pass(tmp_path: Path) -> None:
    """Each unfinished shard gets its entries; a finished one is left alone and not asked for."""
    root = DataRoot(tmp_path)
    first = recipe(root, stage="first")
    second = recipe(root, stage="second")
    asked: list[list[str]] = []

    def make(recipes: Sequence[ShardRecipe]) -> Generator[Sequence[VideoEntry], None, None]:
        asked.append([each.shard.stage for each in recipes])
        for video_id in ("a", "b"):
            yield [Maker(len(each.shard.stage)).entry(video_id) for each in recipes]

    results = build_shards(
        [second, first], num_videos=2, make=make, lost=[index_row("c", 0, reason="no_frames")]
    )
    assert [
        (result.shard.stage, result.done, result.num_ok, result.num_failed) for result in results
    ] == [
        ("second", True, 2, 1),
        ("first", True, 2, 1),
    ]
    assert FeatureFile(second.shard).regions("b").mean() == 6
    root.delete(first.shard.index_name)
    assert [result.done for result in build_shards([second, first], num_videos=2, make=make)] == [
        False,
        True,
    ]
    assert asked == [["second", "first"], ["first"]]
    assert not any(result.done for result in build_shards([second, first], num_videos=2, make=make))


def test_what_was_forgotten_meanwhile_is_not_made(tmp_path: Path) -> None:
    """Nor is it named by the shard: a step may have read what there is before it got the lock."""
    root = DataRoot(tmp_path)
    rows = [ManifestRow(name, "s", "train", "s-00000", f"/{name}") for name in ("a", "c")]
    write_manifest_shard(root, "s-00000", rows)
    shard = recipe(root).shard
    asked = ShardRecipe(
        shard=shard,
        settings={},
        inputs={"a": "1", "b": "2"},
        columns=fields(num_regions=3, dims=4),
    )
    maker = Maker(1.0)
    failed = [index_row(name, 0, reason="damaged") for name in ("c", "d")]
    build_shard(asked, video_ids=["a", "b"], make=maker, lost=failed)
    assert maker.asked == ["a"]
    assert [row["video_id"] for row in shard.rows()] == ["a", "c"]
    assert shard.read().provenance.inputs == {"a": "1"}
