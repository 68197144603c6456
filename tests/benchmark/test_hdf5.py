"""Features from HDF5 files that name other files or claim more than they hold."""

from __future__ import annotations

import h5py
import numpy as np

from hapvr.benchmark.hdf5 import read_hdf5_features, survey_hdf5


def test_values_of_other_files_are_not_read(tmp_path):
    """External raw storage and virtual datasets may name any file of this machine; none is opened."""
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.full((2, 9, 16), 7, dtype=np.float32).tobytes())
    with h5py.File(tmp_path / "source.hdf5", "w") as content:
        content["x"] = np.full((2, 9, 16), 7, dtype=np.float32)
    with h5py.File(tmp_path / "features.hdf5", "w") as content:
        content["good"] = np.ones((2, 9, 16), dtype=np.float32)
        content.create_dataset("external", (2, 9, 16), np.float32, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        layout = h5py.VirtualLayout((2, 9, 16), np.float32)
        layout[:] = h5py.VirtualSource(str(tmp_path / "source.hdf5"), "x", shape=(2, 9, 16))
        content.create_virtual_dataset("virtual", layout)
    found = {video.video_id: video for video in read_hdf5_features(tmp_path / "features.hdf5", dims=16)}
    assert {name: video.reason for name, video in found.items()} == {
        "good": "",
        "external": "other_file",
        "virtual": "other_file",
    }


def test_sizes_that_are_only_claimed_are_refused(tmp_path):
    """A dataset of fill values and one of compressed zeros claim gigabytes and store nothing; neither is read."""
    with h5py.File(tmp_path / "features.hdf5", "w") as content:
        content["good"] = np.ones((2, 9, 16), dtype=np.float32)
        content.create_dataset("filled", (10_000_000, 9, 16), np.float32, fillvalue=1.0)
        content.create_dataset(
            "zeros", data=np.zeros((3000, 9, 16), np.float32), compression="gzip", compression_opts=9
        )
        content.create_dataset("huge", (10_000_000, 9, 16), np.float32, chunks=(1000, 9, 16), fillvalue=1.0)
    found = {video.video_id: video.reason for video in read_hdf5_features(tmp_path / "features.hdf5", dims=16)}
    assert found == {"good": "", "filled": "too_large", "zeros": "too_large", "huge": "too_large"}
    assert survey_hdf5(tmp_path / "features.hdf5").num_regions == 9
