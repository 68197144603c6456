"""What the stage `videos` knows of the collection's files: where they are, what they contain, how good they are."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hapvr.storage.filesystem import DataRoot
from hapvr.storage.manifest import VIDEOS_STAGE
from hapvr.storage.shards import STATUS_OK, Shard
from hapvr.video.sources import path_of_text


@dataclass(frozen=True, kw_only=True)
class VideoFacts:
    """path: of the file, None where only features are known. sha256: of its bytes; of the id where there is no file.

    num_bytes, duration_s, width_px, height_px, codec: as the file says; None or 0 where it does not.
    """

    path: Path | None
    sha256: str
    num_bytes: int = 0
    duration_s: float | None = None
    width_px: int = 0
    height_px: int = 0
    codec: str = ""


class CollectionFacts:
    """Facts by video id, from the index of the shard that the video is in. Any thread may ask."""

    def __init__(self, root: DataRoot, shards: Mapping[str, str]) -> None:
        """shards: video id -> shard."""
        self._root = root
        self._shards = shards
        self._rows: dict[str, dict[str, dict[str, Any]]] = {}
        self._guard = threading.Lock()

    def of(self, video_id: str) -> VideoFacts:
        """Facts of a video; those of an id that no shard describes have no path."""
        row = self._row(video_id)
        if row is None:
            # imported features have no files; the id then stands for the content
            return VideoFacts(path=None, sha256=hashlib.sha256(f"id:{video_id}".encode()).hexdigest())
        return VideoFacts(
            path=path_of_text(row["path"]),
            sha256=row["sha256"],
            num_bytes=row["num_bytes"],
            duration_s=row["duration_s"],
            width_px=row["width_px"] or 0,
            height_px=row["height_px"] or 0,
            codec=row["codec"] or "",
        )

    def _row(self, video_id: str) -> dict[str, Any] | None:
        key = self._shards.get(video_id)
        if key is None:
            return None
        with self._guard:
            if key not in self._rows:
                found = Shard(self._root, VIDEOS_STAGE, key).finished_rows()
                rows = [] if found is None else found[1]
                self._rows[key] = {row["video_id"]: row for row in rows if row["status"] == STATUS_OK}
            return self._rows[key].get(video_id)
