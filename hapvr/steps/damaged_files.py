"""Files of videos that we fetched or generated, and that were changed or lost since."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import VIDEOS_STAGE
from hapvr.data.shards import STATUS_OK, Shard
from hapvr.files import file_sha256
from hapvr.steps.fetching import DOWNLOAD_FOLDER
from hapvr.steps.sources import CORPUS_FOLDER
from hapvr.video.sources import path_of_text


@dataclass(frozen=True)
class DamagedFile:
    """A file that we fetched or generated, and that was changed or lost since."""

    video_id: str
    path: Path
    problem: str
    """in words"""


def damaged_files(root: DataRoot, key: str) -> list[DamagedFile]:
    """Files of a shard that were changed since we fetched or generated them, and fetched ones that
    are lost. Generated ones that are gone may be of an earlier benchmark.

    Raises DamagedError where the shard cannot be read.
    """
    if root.local is None:
        return []
    damaged = []
    for row in Shard(root, VIDEOS_STAGE, key).rows():
        path = path_of_text(row["path"])
        origin = _origin(root, key, row["video_id"], path)
        if row["status"] != STATUS_OK or not origin:
            continue
        problem = ""
        if not os.path.lexists(path):
            problem = "is missing" if origin == "fetched" else ""
        elif not os.path.isfile(path):
            problem = "is not a regular file"
        elif file_sha256(path) != row["sha256"]:
            problem = "changed since it was fetched or made"

        if problem:
            damaged.append(DamagedFile(row["video_id"], path, problem))

    return damaged


def _origin(
    root: DataRoot, key: str, video_id: str, path: Path
) -> Literal["fetched", "generated", ""]:
    """Whether we fetched a file below the data root, as its name tells, or generated it; "" for a
    user's own, and for one behind a link."""
    assert root.local is not None
    base = root.local.resolve()
    if path != path.resolve():
        return ""
    generated = base / CORPUS_FOLDER / video_id.partition("/")[0]
    if path.is_relative_to(generated / "videos"):
        return "generated" if (generated / "corpus.json").is_file() else ""
    if path.parent != base / DOWNLOAD_FOLDER / key:
        return ""
    from hapvr.video.download import file_stem  # with yt-dlp, which generated files need none

    return "fetched" if path.name.startswith(f"{file_stem(video_id)}.") else ""
