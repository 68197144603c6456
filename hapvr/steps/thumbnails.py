"""Small pictures of a benchmark's videos, from the stored frames of the collection.

Imported features come without frames, and have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from PIL import Image

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.data.frames import STAGE, FrameFile, thumbnail
from hapvr.steps.benchmark_features import stored_ids
from hapvr.steps.project import Project


def thumbnails(
    project: Project, definition: BenchmarkDefinition, shards: Sequence[str], video_ids: Iterable[str], *, count: int
) -> dict[str, list[Image.Image]]:
    """`count` evenly spaced frames of each video, by the benchmark's ids; videos without stored frames are left out."""
    wanted = set(video_ids)
    found: dict[str, list[Image.Image]] = {}
    for key in shards:
        shard = project.shard(STAGE, key)
        if shard.provenance() is None:
            continue
        file = FrameFile(shard)
        for video_id, stored_id in stored_ids(definition, file.video_ids).items():
            if video_id in wanted - found.keys():
                jpegs = file.read(stored_id).jpegs
                middles = [int((part + 0.5) / count * len(jpegs)) for part in range(count)]
                found[video_id] = [thumbnail(jpegs[index]) for index in middles]
    return found
