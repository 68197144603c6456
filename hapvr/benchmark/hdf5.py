"""Published features in HDF5: one dataset per video id, [T, R, D] or [T, D]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from hapvr.errors import DataError

MAX_VIDEO_BYTES = 2 << 30
"""Most bytes that the values of one video may take in memory; 12 hours at 1 frame per second, [9, 512] floats, take 0.8 GB."""

MAX_COMPRESSION = 200
"""Most times that the values of a video may be larger than what is stored of them; features hardly compress."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportedFeatures:
    """One video of an HDF5 file. features: float16 [T, R, D], or None where reason (a short code) says why not."""

    video_id: str
    features: NDArray[np.float16] | None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Hdf5Survey:
    """The content of a file: names of all datasets, in the file's order, and the most frequent shape per frame."""

    video_ids: tuple[str, ...]
    num_regions: int
    dims: int


def survey_hdf5(path: Path) -> Hdf5Survey:
    """Look at the shapes in a file of features, without reading them.

    Raises DataError where it is no HDF5 file, a dataset's name is no usable id, or no dataset looks like features.
    """
    with _open(path) as file:
        names = dataset_names(file)
        for name in names:
            _require_id(name, path)
        shapes: Counter[tuple[int, int]] = Counter()
        for name in names:
            dataset = file[name]
            floats = dataset.dtype.kind == "f" and dataset.ndim in (2, 3) and 0 not in dataset.shape
            if floats and not _refusal(dataset)[0]:
                shapes[(1 if dataset.ndim == 2 else dataset.shape[1], dataset.shape[-1])] += 1
    if not shapes:
        raise DataError(
            f"{path}: none of {len(names)} datasets holds features; wanted floats, [frames, regions, dims] or "
            "[frames, dims], one dataset per video id"
        )
    (num_regions, dims), _ = shapes.most_common(1)[0]
    return Hdf5Survey(video_ids=tuple(names), num_regions=num_regions, dims=dims)


def read_hdf5_features(
    path: Path,
    *,
    video_ids: Sequence[str] | None = None,
    known: Collection[str] | None = None,
    num_regions: int | None = None,
    dims: int | None = None,
) -> Iterator[ImportedFeatures]:
    """Features of every dataset in the file, or of `video_ids`, one video in memory at a time.

    A frame-level dataset [T, D] becomes [T, 1, D]. An id is the dataset's full name, so it may hold slashes.
    known: all names in the file, where the caller has listed them before. num_regions, dims: the wanted R and D; None
    accepts any. A video comes without features, and with a reason, if it has no dataset (missing), no frames
    (no_frames), values that are not finite (not_finite), another shape (wrong_shape), values that are not in this file
    (other_file), or a size that what is stored does not justify (too_large). Of the last two no value is read.
    Raises DataError where the file is no HDF5 file or holds no dataset.
    """
    with _open(path) as file:
        names = dataset_names(file) if known is None else known
        if not names:
            raise DataError(f"{path}: no datasets; wanted one per video id, [frames, regions, dims] or [frames, dims]")
        known = known or set(names)
        for video_id in names if video_ids is None else video_ids:
            if video_id in known:
                yield _convert(video_id, file[video_id], num_regions=num_regions, dims=dims)
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


def _open(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path}: not a readable HDF5 file ({error}); wanted one dataset per video id") from error


def _convert(video_id: str, dataset: h5py.Dataset, *, num_regions: int | None, dims: int | None) -> ImportedFeatures:
    shape = dataset.shape
    found_regions = 1 if len(shape) == 2 else shape[1] if len(shape) == 3 else 0

    def failed(reason: str, message: str) -> ImportedFeatures:
        return ImportedFeatures(video_id=video_id, features=None, reason=reason, message=message)

    wrong_dims = dims is not None and (not shape or shape[-1] != dims)
    wrong_regions = num_regions is not None and found_regions != num_regions
    if len(shape) not in (2, 3) or wrong_dims or wrong_regions or dataset.dtype.kind != "f":
        return failed("wrong_shape", f"{dataset.dtype} {list(shape)}, wanted {_wanted_shape(num_regions, dims)}")
    if 0 in shape:
        return failed("no_frames", f"shape {list(shape)} holds no features")
    reason, message = _refusal(dataset)
    if reason:
        return failed(reason, message)
    values = dataset[()].astype(np.float16)
    if not np.isfinite(values).all():
        return failed("not_finite", f"{int((~np.isfinite(values)).sum())} values are not finite in half precision")
    return ImportedFeatures(video_id=video_id, features=values[:, None] if values.ndim == 2 else values)


def _refusal(dataset: h5py.Dataset) -> tuple[str, str]:
    """Reason and message where the values of a dataset must not be read; ("", "") where they may be."""
    if dataset.external or dataset.is_virtual:
        kind = "external" if dataset.external else "virtual"
        return (
            "other_file",
            f"the dataset is {kind}: its values are in other files, which are not opened; copy them into this one",
        )
    num_bytes, stored = dataset.nbytes, dataset.id.get_storage_size()
    if num_bytes > MAX_VIDEO_BYTES or num_bytes > MAX_COMPRESSION * stored:
        return "too_large", (
            f"{num_bytes} bytes of values, of which {stored} are stored; at most {MAX_VIDEO_BYTES} are read, and at most "
            f"{MAX_COMPRESSION} times what is stored"
        )
    return "", ""


def _require_id(name: str, path: Path) -> None:
    """Raise DataError for a dataset whose name cannot be a video's id."""
    parts = name.split("/")
    if not name.isprintable() or "" in parts or "." in parts or ".." in parts:
        raise DataError(
            f"{path}: the dataset {name!r} cannot be a video's id; wanted printable characters, and no empty part, '.' or '..' "
            f"between slashes. Rename it"
        )


def _wanted_shape(num_regions: int | None, dims: int | None) -> str:
    last = "dims" if dims is None else dims
    by_region = f"[frames, {'regions' if num_regions is None else num_regions}, {last}]"
    return f"floats {by_region} or [frames, {last}]" if num_regions in (None, 1) else f"floats {by_region}"
