"""What the sources hold at one moment, so that sensors see when it changes."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from hapvr.config import digest
from hapvr.errors import DataError
from hapvr.provenance import file_sha256
from hapvr.stages.project import Project
from hapvr.video.settings import BenchmarkSource, DemoCorpusSource, FolderSource, ListSource, OwnVideosSource
from hapvr.video.sources import path_of_text, scan_folder


@dataclass(frozen=True)
class SourceSnapshot:
    """What the sources hold at one moment.

    digest: changes when a video or row is added, removed or renamed. unsettled: files whose last write was a moment ago,
    so that they may still be being copied.
    """

    digest: str
    unsettled: tuple[Path, ...]


def snapshot_sources(project: Project, *, settle_s: float) -> SourceSnapshot:
    """Look at the sources without decoding anything.

    settle_s: a file that was written to in the last so many seconds is unsettled. A file whose time lies further than that
    in the future, as the clock was set back, counts as settled. Raises DataError for a source that is missing or empty.
    """
    state = {}
    unsettled: list[Path] = []
    now = time.time()
    for source in project.config.sources:
        if isinstance(source, FolderSource | OwnVideosSource):
            entries = scan_folder(project.path(source.path), source=source.name).entries
            state[source.name] = hashlib.sha256("\0".join(entry.video_id for entry in entries).encode()).hexdigest()
            for entry in entries:
                path = path_of_text(entry.uri)
                if path.is_file() and abs(now - path.stat().st_mtime) < settle_s:
                    unsettled.append(Path(entry.uri))
        elif isinstance(source, ListSource):
            path = project.path(source.path)
            if not path.is_file():
                raise DataError(
                    f"source {source.name}: {path} is no file; set the source's path to a CSV or Parquet file"
                )
            state[source.name] = file_sha256(path)
        else:
            assert isinstance(source, DemoCorpusSource | BenchmarkSource)
            state[source.name] = digest(source)
    return SourceSnapshot(hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest(), tuple(unsettled))
