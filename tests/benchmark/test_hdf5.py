"""Features from HDF5 files: both layouts, ids with slashes, and every kind of video that cannot be used."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from hapvr.benchmark.hdf5 import read_hdf5_features, survey_hdf5
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


def test_read_hdf5_features_of_both_layouts_and_of_unusable_videos(file):
    """Region features keep their shape, frame features get one region, values are rounded to half precision; each video that
    cannot be used comes with a reason, in the wanted order."""
    found = {video.video_id: video for video in read_hdf5_features(file, dims=16)}
    with h5py.File(file) as content:
        np.testing.assert_array_equal(found["regions"].features, content["regions"][()].astype(np.float16))
    assert found["regions"].features.dtype == np.float16
    assert found["1/1_1_Y"].features.shape == (3, 1, 16)
    reasons = {name: video.reason for name, video in found.items() if video.features is None}
    assert reasons == {"empty": "no_frames", "other": "wrong_shape", "text": "wrong_shape", "nan": "not_finite"}
    chosen = read_hdf5_features(file, video_ids=["gone", "regions"])
    assert [(video.video_id, video.reason) for video in chosen] == [("gone", "missing"), ("regions", "")]


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


@pytest.mark.parametrize("name", ["two\nlines", "up/../../etc", "bell\a", "esc\x1b[31m"])
def test_names_that_cannot_be_ids_are_refused(tmp_path, name):
    """A name with control characters or steps between folders never becomes an id."""
    with h5py.File(tmp_path / "features.hdf5", "w") as content:
        content[name] = content["good"] = np.ones((2, 9, 16), dtype=np.float32)
    with pytest.raises(DataError, match=r"cannot be a video's id; wanted printable characters"):
        survey_hdf5(tmp_path / "features.hdf5")


def test_read_hdf5_features_refuses_other_files(tmp_path):
    """A text file and an empty HDF5 file are errors."""
    (tmp_path / "text.hdf5").write_text("features")
    with pytest.raises(DataError, match="not a readable HDF5 file"):
        list(read_hdf5_features(tmp_path / "text.hdf5"))
    h5py.File(tmp_path / "empty.hdf5", "w").close()
    with pytest.raises(DataError, match="none of 0 datasets holds features"):
        survey_hdf5(tmp_path / "empty.hdf5")
