"""Features from HDF5 files: both layouts, ids with slashes, and every kind of video that cannot be used."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from hapvr.benchmark.hdf5 import read_hdf5_features
from hapvr.errors import DataError
from hapvr.seeding import numpy_rng


@pytest.fixture
def file(tmp_path):
    rng = numpy_rng("hdf5")
    path = tmp_path / "features.hdf5"
    with h5py.File(path, "w") as content:
        content["regions"] = rng.random((4, 9, 16), dtype=np.float32)
        content["1/1_1_Y"] = rng.random((3, 16), dtype=np.float32)
        content["empty"] = np.zeros((0, 9, 16), dtype=np.float32)
        content["other"] = np.zeros((2, 9, 8), dtype=np.float32)
        content["text"] = "not features"
        content["nan"] = np.full((2, 16), np.nan, dtype=np.float32)
    return path


def test_read_hdf5_features_of_both_layouts(file):
    """Region features keep their shape, frame features get one region, values are rounded to half precision."""
    found = {video.video_id: video for video in read_hdf5_features(file, dims=16)}
    with h5py.File(file) as content:
        np.testing.assert_array_equal(found["regions"].features, content["regions"][()].astype(np.float16))
    assert found["1/1_1_Y"].features.shape == (3, 1, 16)
    assert found["regions"].features.dtype == np.float16


def test_read_hdf5_features_gives_a_reason_for_every_video_it_cannot_use(file):
    """Nothing is dropped: each unusable video comes with a reason."""
    reasons = {video.video_id: video.reason for video in read_hdf5_features(file, dims=16) if video.features is None}
    assert reasons == {"empty": "no_frames", "other": "wrong_shape", "text": "wrong_shape", "nan": "not_finite"}


def test_read_hdf5_features_of_wanted_ids(file):
    """Wanted ids come in their order, missing ones with that reason."""
    found = list(read_hdf5_features(file, video_ids=["gone", "regions"]))
    assert [(video.video_id, video.reason) for video in found] == [("gone", "missing"), ("regions", "")]


def test_read_hdf5_features_refuses_other_files(tmp_path):
    """A text file and an empty HDF5 file are errors."""
    (tmp_path / "text.hdf5").write_text("features")
    with pytest.raises(DataError, match="not a readable HDF5 file"):
        list(read_hdf5_features(tmp_path / "text.hdf5"))
    h5py.File(tmp_path / "empty.hdf5", "w").close()
    with pytest.raises(DataError, match="no datasets"):
        list(read_hdf5_features(tmp_path / "empty.hdf5"))
