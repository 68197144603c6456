"""Published features in HDF5: one dataset per video id, [T, R, D] or [T, D]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from hapvr.errors import DataError


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportedFeatures:
    """One video of an HDF5 file. features: float16 [T, R, D], or None where reason (a short code) says why not."""

    video_id: str
    features: NDArray[np.float16] | None
    reason: str = ""
    message: str = ""


def read_hdf5_features(
    path: Path, *, video_ids: Sequence[str] | None = None, dims: int | None = None
) -> Iterator[ImportedFeatures]:
    """Features of every dataset in the file, or of `video_ids`, one video in memory at a time.

    A frame-level dataset [T, D] becomes [T, 1, D]. An id is the dataset's full name, so it may hold slashes.
    dims: D that is wanted, None for any. A video without dataset (missing), frames (no_frames), finite values
    (not_finite), or of another shape (wrong_shape) comes without features and with that reason.
    Raises DataError where the file is no HDF5 file or holds no dataset.
    """
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path}: not a readable HDF5 file ({error}); wanted one dataset per video id") from error
    with file:
        names = dataset_names(file)
        if not names:
            raise DataError(f"{path}: no datasets; wanted one per video id, [frames, regions, dims] or [frames, dims]")
        known = set(names)
        for video_id in names if video_ids is None else video_ids:
            if video_id in known:
                yield _convert(video_id, file[video_id], dims=dims)
            else:
                yield ImportedFeatures(
                    video_id=video_id,
                    features=None,
                    reason="missing",
                    message=f"no dataset {video_id!r} in {path.name}",
                )


def dataset_names(file: h5py.File) -> list[str]:
    """Full names of all datasets, in the file's order."""
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def _convert(video_id: str, dataset: h5py.Dataset, *, dims: int | None) -> ImportedFeatures:
    shape = dataset.shape

    def failed(reason: str, message: str) -> ImportedFeatures:
        return ImportedFeatures(video_id=video_id, features=None, reason=reason, message=message)

    if len(shape) not in (2, 3) or (dims is not None and shape[-1] != dims) or dataset.dtype.kind != "f":
        wanted = "dims" if dims is None else str(dims)
        return failed(
            "wrong_shape",
            f"{dataset.dtype} {list(shape)}, wanted floats [frames, regions, {wanted}] or [frames, {wanted}]",
        )
    if 0 in shape:
        return failed("no_frames", f"shape {list(shape)} holds no features")
    values = dataset[()].astype(np.float16)
    if not np.isfinite(values).all():
        return failed("not_finite", f"{int((~np.isfinite(values)).sum())} values are not finite in half precision")
    return ImportedFeatures(video_id=video_id, features=values[:, None] if values.ndim == 2 else values)
