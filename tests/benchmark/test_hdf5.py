"""Features from HDF5 files that name other files or claim more than they hold."""

import h5py
import numpy as np
import pytest

from hapvr.benchmark.hdf5 import read_hdf5_features, survey_hdf5
from hapvr.errors import DataError


def test_what_is_not_in_the_file_is_not_read(tmp_path):
    """External raw storage and virtual datasets may name any file of this machine, and none is
    opened; fill values and compressed zeros claim gigabytes and store nothing."""
    path = tmp_path / "features.hdf5"
    secret = tmp_path / "secret.bin"
    shape = (2, 9, 16)
    secret.write_bytes(np.full(shape, 7, dtype=np.float32).tobytes())
    with h5py.File(tmp_path / "source.hdf5", "w") as content:
        content["x"] = np.full(shape, 7, dtype=np.float32)
    with h5py.File(path, "w") as content:
        content["good"] = np.ones(shape, dtype=np.float32)
        content.create_dataset(
            "external", shape, np.float32, external=[(str(secret), 0, h5py.h5f.UNLIMITED)]
        )
        layout = h5py.VirtualLayout(shape, np.float32)
        layout[:] = h5py.VirtualSource(str(tmp_path / "source.hdf5"), "x", shape=shape)
        content.create_virtual_dataset("virtual", layout)
        content.create_dataset("filled", (10_000_000, 9, 16), np.float32, fillvalue=1.0)
        content.create_dataset(
            "zeros", data=np.zeros((3000, 9, 16), np.float32), compression="gzip"
        )
        content.create_dataset(
            "huge", (10_000_000, 9, 16), np.float32, chunks=(1000, 9, 16), fillvalue=1.0
        )
        content["empty"] = h5py.Empty(np.float32)

    video_ids, shape = survey_hdf5(path)
    assert shape == (9, 16)
    reasons = {
        video_id: reason for video_id, _, reason, _ in read_hdf5_features(path, video_ids, shape)
    }
    assert reasons.pop("good") == ""
    assert reasons.pop("empty") == "wrong_shape"
    large = dict.fromkeys(("filled", "zeros", "huge"), "too_large")
    assert reasons == dict.fromkeys(("external", "virtual"), "other_file") | large


def test_groups_that_lie_deep_in_each_other_are_refused(tmp_path):
    """HDF5 would look through thousands of them for minutes."""
    with h5py.File(tmp_path / "deep.hdf5", "w") as content:
        content["a/" * 3000 + "x"] = np.ones((2, 9, 16), np.float32)
    with pytest.raises(DataError, match="more than 32 deep"):
        survey_hdf5(tmp_path / "deep.hdf5")
