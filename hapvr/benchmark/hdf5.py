"""Published features in HDF5: one dataset per video id, [T, R, D] or [T, D]."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hapvr.errors import DamagedError, DataError
from hapvr.files import file_problem, require_regular

MAX_VIDEO_BYTES = 2 << 30
"""The most bytes that the values of one video may take in memory; 12 hours at 1 frame per second,
[9, 512] floats, take 0.8 GB."""

MAX_DEPTH = 32
MAX_COMPRESSION = 200
"""How many times larger than their stored bytes the values of a video may be; features hardly
compress."""

LIBRARY_ERRORS = (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError)
"""What h5py raises for damaged bytes."""


def survey_hdf5(path: Path) -> tuple[list[str], tuple[int, int]]:
    """Names of all datasets, in the file's order, and the most frequent shape per frame, (R, D); no
    features are read. Raises DataError where it is not an HDF5 file, a dataset's name is not a
    usable id, or no dataset looks like features."""
    with _open(path) as file:
        names: list[str] = []

        def visit(name: str, item: Any) -> None:
            if name.count("/") > MAX_DEPTH:
                raise DataError(
                    f"{path}: groups are nested more than {MAX_DEPTH} deep; flatten them"
                )

            if isinstance(item, h5py.Dataset):
                names.append(name)

        # This follows hard links alone, none to other files.
        file.visititems(visit)
        for name in names:
            if not name.isprintable() or {"", ".", ".."} & set(name.split("/")):
                raise DataError(
                    f"{path}: the dataset {name!r} cannot be a video's id; expected printable "
                    "characters, and no empty part, "
                    "'.' or '..' between slashes. Rename it"
                )

        shapes: Counter[tuple[int, int]] = Counter()
        for dataset in map(file.get, names):
            if not _refusal(dataset)[0]:
                num_regions = 1 if dataset.ndim == 2 else dataset.shape[1]
                shapes[num_regions, dataset.shape[-1]] += 1

    if not shapes:
        raise DataError(
            f"{path}: none of {len(names)} datasets holds features; expected floats, [frames, "
            "regions, dims] or "
            "[frames, dims], one dataset per video id"
        )

    return names, shapes.most_common(1)[0][0]


def read_hdf5_features(
    path: Path, video_ids: Sequence[str], shape: tuple[int, int]
) -> Iterator[tuple[str, NDArray[np.float16] | None, str, str]]:
    """(id, features float16 [T, R, D], reason, message) of datasets of a file, one video in memory
    at a time. A frame-level dataset [T, D] becomes [T, 1, D]. A video comes without features, and
    with a reason, if it has no frames (no_frames), bytes that cannot be read (damaged), values that
    are not finite (not_finite), another shape per frame (wrong_shape), values outside this file
    (other_file), or a size that its stored bytes do not justify (too_large). In the last two cases
    no value is read. shape: (R, D). Raises DataError where the file is not an HDF5 file."""
    with _open(path) as file:
        for video_id in video_ids:
            features = None
            try:
                reason, message = _refusal(file[video_id], *shape)
                features = None if reason else file[video_id][()].astype(np.float16)
            except LIBRARY_ERRORS as error:
                reason = "damaged"
                message = f"cannot be read ({error})"

            if features is not None:
                features = features.reshape(-1, *shape)
                number = int((~np.isfinite(features)).sum())
                if number:
                    features = None
                    reason = "not_finite"
                    message = f"{number} values are not finite in half precision"

            yield video_id, features, reason, message


@contextmanager
def _open(path: Path) -> Iterator[h5py.File]:
    try:
        require_regular(path)
        with h5py.File(path, "r") as file:
            yield file
    except LIBRARY_ERRORS as error:
        raise DamagedError(
            f"{path}: not a readable HDF5 file ({file_problem(error)}); expected one dataset per "
            "video id"
        ) from error


def _refusal(
    dataset: h5py.Dataset, num_regions: int | None = None, dims: int | None = None
) -> tuple[str, str]:
    """Reason and message if a dataset is not a video's features or must not be read; ("", "") if it
    may be read."""
    shape: tuple[int, ...] = dataset.shape or ()  # none of an empty one
    if dataset.dtype.kind != "f" or not _fits(shape, num_regions, dims):
        wanted = f"[frames, {num_regions or 'regions'}, {dims or 'dims'}]"
        return "wrong_shape", f"{dataset.dtype} {list(shape)}, expected floats {wanted}"
    if 0 in shape:
        return "no_frames", f"shape {list(shape)} holds no features"
    if dataset.external or dataset.is_virtual:
        return (
            "other_file",
            "its values are in other files, which are not opened; copy them into this one",
        )

    num_bytes = dataset.nbytes
    stored = dataset.id.get_storage_size()
    if num_bytes > min(MAX_VIDEO_BYTES, MAX_COMPRESSION * stored):
        return "too_large", (
            f"{num_bytes} bytes of values, of which {stored} are stored; at most "
            f"{MAX_VIDEO_BYTES} are read, and at most "
            f"{MAX_COMPRESSION} times what is stored"
        )

    return "", ""


def _fits(shape: tuple[int, ...], num_regions: int | None, dims: int | None) -> bool:
    """Whether a shape is [T, R, D], or [T, D] for R = 1; None: of any size."""
    if len(shape) not in (2, 3):
        return False
    regions = 1 if len(shape) == 2 else shape[1]
    return num_regions in (None, regions) and dims in (None, shape[-1])
