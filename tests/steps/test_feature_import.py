"""HDF5 features become shards that a reader cannot tell from extracted ones, and damage is
found."""

from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import polars as pl
import pytest

from hapvr.data.features import FeatureStore
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import write_manifest_shard
from hapvr.errors import ArgumentError
from hapvr.files import file_sha256
from hapvr.seeding import numpy_rng
from hapvr.steps.features import import_features

GOOD = ("a", "b/1_Y", "c", "d", "e")


@pytest.fixture
def hdf5_file(tmp_path: Path) -> Path:
    """Five usable videos of 2 to 6 frames, [T, 9, 16], and one of each kind that is not."""
    rng = numpy_rng("feature import")
    path = tmp_path / "features.hdf5"
    with h5py.File(path, "w") as content:
        for number, name in enumerate(GOOD, start=2):
            content[name] = rng.random((number, 9, 16), dtype=np.float32)
        content["empty"] = np.zeros((0, 9, 16), dtype=np.float32)
        content["frame level"] = np.zeros((2, 16), dtype=np.float32)
        content["other dims"] = np.zeros((2, 9, 8), dtype=np.float32)
        content["nan"] = np.full((2, 9, 16), np.nan, dtype=np.float32)

    return path


def test_import_features_keeps_every_value_and_counts_every_loss(
    hdf5_file: Path, tmp_path: Path
) -> None:
    """Features come back to half precision; every dataset is a row."""
    root = DataRoot(tmp_path / "data")
    done = import_features(root, hdf5_file, name="set", fps=2.0, shard_videos=4)
    shards = [one.shard for one in done]
    assert [shard.key for shard in shards] == ["set-00000", "set-00001", "set-00002"]
    reasons = Counter(reason for shard in shards for reason in shard.index()["reason"])
    assert reasons == {"": 5, "no_frames": 1, "not_finite": 1, "wrong_shape": 2}
    store = FeatureStore(root, [shard.key for shard in shards])
    features = dict(store.read(GOOD))
    with h5py.File(hdf5_file) as content:
        assert set(features) == set(GOOD)
        for name in GOOD:
            np.testing.assert_array_equal(
                features[name].numpy(), content[name][()].astype(np.float16)
            )

    assert store.settings["imported"] == {"format": "hdf5", "sha256": file_sha256(hdf5_file)}
    index = pl.concat([shard.index() for shard in shards])
    shape_message = index.filter(pl.col("video_id") == "other dims")["message"].item()
    assert shape_message == "float32 [2, 9, 8], expected floats [frames, 9, 16]"
    times = pl.from_arrow(shards[0].open_data().read(columns=["video_id", "timestamp_s"]))
    assert isinstance(times, pl.DataFrame)
    assert times.filter(pl.col("video_id") == "a")["timestamp_s"].to_list() == [0.0, 0.5]


def test_import_features_goes_on_where_it_was_stopped(hdf5_file: Path, tmp_path: Path) -> None:
    """Finished shards of the same file are left alone, a lost one is made again with the same
    bytes."""
    root = DataRoot(tmp_path / "data")
    first = import_features(root, hdf5_file, name="set", shard_videos=4)
    digests = [one.shard.read().data_sha256 for one in first]
    root.delete(first[1].shard.index_name)
    second = import_features(root, hdf5_file, name="set", shard_videos=4)
    assert [one.done for one in second] == [False, True, False]
    assert [one.shard.read().data_sha256 for one in second] == digests
    assert [one.num_ok for one in second] == [one.num_ok for one in first]
    with pytest.raises(ArgumentError, match="a video 'a' already"):
        import_features(root, hdf5_file, name="again")
    write_manifest_shard(root, "own-00000", [])
    with h5py.File(hdf5_file, "a") as content:
        content["z"] = content["a"][()]
    for name, message in (("set", "shards set"), ("own", "shards own"), ("new", "a video 'a'")):
        with pytest.raises(ArgumentError, match=f"{message} already; choose another --name"):
            import_features(root, hdf5_file, name=name)
