"""Shards: atomic, contiguous, refused where they do not fit."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hapvr.data import shards
from hapvr.data.features import STAGE, FeatureFile, FeatureStore, fields
from hapvr.data.filesystem import DataRoot
from hapvr.data.shards import Shard, frame_columns, index_row
from hapvr.data.tensors import decode_tensors
from hapvr.errors import DataError
from hapvr.provenance import Provenance
from hapvr.seeding import numpy_rng

LENGTHS = {"a": 3, "b": 300, "c": 1, "d": 40}


def write_shard(
    root: DataRoot, key: str, *, settings: dict[str, object], lengths: dict[str, int] = LENGTHS
) -> Shard:
    """Random features of videos of these lengths."""
    shard = Shard(root, STAGE, key)
    rng = numpy_rng(0, key)
    with shard.write_data(fields(num_regions=9, dims=4)) as write:
        for video_id, count in lengths.items():
            regions = rng.standard_normal((count, 9, 4))
            write(
                frame_columns(
                    video_id, np.arange(count, dtype=float).tolist(), [0] * count, regions
                )
            )

    rows = [index_row(video_id, count) for video_id, count in lengths.items()]
    rows.append(index_row("lost", 0, reason="no_frames", message="gone"))
    shard.write_index(rows, provenance=Provenance(STAGE, settings))
    return shard


def test_feature_store_refuses_shards_of_different_settings(tmp_path: Path) -> None:
    """Features of other weights do not mix, and the message says which setting differs."""
    root = DataRoot(tmp_path)
    write_shard(root, "s-00000", settings={"backbone": {"sha256": "aa"}})
    write_shard(root, "s-00001", settings={"backbone": {"sha256": "bb"}})
    with pytest.raises(DataError, match=r"s-00001 .* backbone\.sha256: expected aa, found bb"):
        FeatureStore(root, ["s-00000", "s-00001"])


def test_reading_notices_data_that_is_not_its_index(tmp_path: Path) -> None:
    """Rows of another video under an id are an error, not a wrong feature."""
    root = DataRoot(tmp_path)
    shard = write_shard(root, "s-00000", settings={})
    other_shard = write_shard(
        root, "s-00001", settings={}, lengths={"x": 3, "b": 300, "c": 1, "d": 40}
    )
    rows = shard.index().to_dicts()
    provenance = shard.require({})
    Path(root.path(shard.data_name)).write_bytes(
        Path(root.path(other_shard.data_name)).read_bytes()
    )
    shard.write_index(rows, provenance=provenance)
    with pytest.raises(DataError, match="does not hold a where its index says"):
        list(FeatureStore(root, ["s-00000"]).read(["a"]))


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=8),
    group_rows=st.integers(1, 100),
    order=st.randoms(use_true_random=False),
)
def test_any_row_groups_read_as_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], group_rows: int, order: Any
) -> None:
    """Whatever row groups the writer makes, each video, and each part of one, equals its slice of
    the column, in any order."""
    root = DataRoot(tmp_path_factory.mktemp("root"))
    named = {f"v{number}": length for number, length in enumerate(lengths)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "ROW_GROUP_ROWS", group_rows)
        shard = write_shard(root, "s-00000", settings={}, lengths=named)

    data = shard.open_data()
    values = decode_tensors(data.read().column("regions"), data.schema_arrow.field("regions"))
    stored = FeatureFile(shard)
    ends = np.cumsum(lengths)
    numbers = list(range(len(lengths)))
    order.shuffle(numbers)
    for number in [*numbers, *range(len(lengths))]:
        wanted = values[ends[number] - lengths[number] : ends[number]]
        first, last = sorted(order.choices(range(lengths[number] + 1), k=2))
        assert np.array_equal(stored.regions(f"v{number}", first, last), wanted[first:last])
        video_regions = stored.regions(f"v{number}")
        times = stored.times(f"v{number}")
        assert np.array_equal(video_regions, wanted)
        assert video_regions.flags.owndata
        assert video_regions.flags.writeable
        assert times == list(range(lengths[number]))

    asked = order.sample(list(named), len(named))
    read = dict(FeatureStore(root, ["s-00000"]).read([*asked, "lost", "unknown"]))
    assert list(read) == list(named)
    assert np.array_equal(np.concatenate([one.numpy() for one in read.values()]), values)


def test_a_store_opens_few_files_at_once(tmp_path: Path) -> None:
    """However many shards it has, so that a process's limit of open files does not bound a
    collection."""
    root = DataRoot(tmp_path)
    keys = [f"s-{number:05d}" for number in range(20)]
    for key in keys:
        write_shard(root, key, settings={}, lengths={f"{key} a": 2, f"{key} b": 1})
    before = len(os.listdir("/proc/self/fd"))
    store = FeatureStore(root, keys)
    for _ in range(2):
        for _, features in store.read([f"{key} a" for key in keys]):
            assert features.shape == (2, 9, 4)
            assert len(os.listdir("/proc/self/fd")) - before <= 5


def test_a_video_of_two_shards_is_read_once(tmp_path: Path) -> None:
    """From the later one, as two imported files may name the same video."""
    root = DataRoot(tmp_path)
    for key, lengths in (("a-00000", {"x": 2, "y": 1}), ("b-00000", {"z": 1, "x": 3})):
        write_shard(root, key, settings={}, lengths=lengths)
    features = list(FeatureStore(root, ["a-00000", "b-00000"]).read(["x", "y", "z"]))
    assert {video_id: len(regions) for video_id, regions in features} == {"x": 3, "y": 1, "z": 1}
    assert len(features) == 3
