"""Descriptors of pictures of one colour, which are kept beside those of videos.

search/<digest of the network>/blank.safetensors
"""

import hashlib
from contextlib import suppress

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from hapvr.data.filesystem import DataRoot
from hapvr.data.shards import Shard
from hapvr.errors import DamagedError, DataError
from hapvr.search.current import model_place, or_missing
from hapvr.search.frame_index import REBUILD

BLANK_FILE = "blank.safetensors"


def read_blank(root: DataRoot, digest: str) -> npt.NDArray[np.float32]:
    """[B, D] descriptors of pictures of one colour by the network of this digest; [0, 0] where the
    descriptors were made without. Raises DamagedError where they were made with them, and the file
    is gone."""
    blank, _ = _stored_blank(root, digest)
    if blank.size:
        return blank
    shard = _described_with_blank(root, digest)
    if shard:
        name = f"{model_place(digest)}/{BLANK_FILE}"
        raise DamagedError(
            f"search: {root.url_of(name)} is missing, and {shard} was made with it; {REBUILD}"
        )

    return blank


def _described_with_blank(root: DataRoot, digest: str) -> str:
    """The place of a shard of descriptors that was made with pictures of one colour; "" if none
    was."""
    stage = f"{model_place(digest)}/descriptors"
    for key in root.list_folders(stage):
        with suppress(DataError):  # one that is unfinished or damaged tells nothing
            if Shard(root, stage, key).read().provenance.settings.get("blank"):
                return f"{stage}/{key}"

    return ""


def known_blank(root: DataRoot, digest: str, made_with: str) -> npt.NDArray[np.float32]:
    """As `read_blank`, for the step that makes the file again: one that is damaged, with a warning,
    or of features with other settings, see `write_blank`, counts as missing."""
    missing = np.zeros((0, 0), np.float32)
    blank, stored_with = or_missing(lambda: _stored_blank(root, digest), (missing, ""))
    return blank if stored_with == made_with else missing


def _stored_blank(root: DataRoot, digest: str) -> tuple[npt.NDArray[np.float32], str]:
    """What `write_blank` kept; [0, 0] and "" where it kept nothing."""
    name = f"{model_place(digest)}/{BLANK_FILE}"
    if not root.exists(name):
        return np.zeros((0, 0), np.float32), ""
    with root.open(name) as file, root.corruption_errors(name, hint=REBUILD):
        stored = load(file.read())
        blank = np.asarray(stored[BLANK_FILE], np.float32)
        if hashlib.sha256(blank.tobytes()).digest() != stored["sha256"].tobytes():
            raise ValueError("its values are not those that were written")
        return blank, stored["made_with"].tobytes().decode()


def write_blank(
    root: DataRoot, digest: str, made_with: str, blank: npt.NDArray[np.float32]
) -> None:
    """Keep what `read_blank` reads. made_with: a digest of the settings of the features, which the
    network's does not tell."""
    values = {"sha256": hashlib.sha256(blank.tobytes()).digest(), "made_with": made_with.encode()}
    stored = {name: np.frombuffer(value, np.uint8) for name, value in values.items()}
    with root.write(f"{model_place(digest)}/{BLANK_FILE}") as stream:
        stream.write(save({BLANK_FILE: np.ascontiguousarray(blank), **stored}))
