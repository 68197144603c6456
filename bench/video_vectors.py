"""Searches that begin with one vector of each video, beside those that begin with frames.

    python -m bench.video_vectors --config COLLECTION/collection.yaml --folder EMPTY_FOLDER

Both indexes are built in the folder from the stored features of a collection. The vector of a video
is the mean of its frames, as in untrained networks of one vector per video. Queries are the stored
frames of each video with an edit, all of them and five of them; and five frames of a film that
consists of 31 of the videos, one after the other. A row says how often the right video, or film, is
the first candidate, and how often it is among the first ten.
"""

import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image, ImageEnhance

from bench.table import parse, show
from hapvr.data.features import STAGE, FeatureFile
from hapvr.search.frame_index import VECTOR, FrameIndex
from hapvr.search.indexes import create_index
from hapvr.search.video_index import nearest_videos
from hapvr.search.votes import vote
from hapvr.settings import IndexSettings
from hapvr.steps.features import open_extractor
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project

Floats = npt.NDArray[np.float32]
PART_FRAMES = 5
FILM_VIDEOS = 31
HITS = 100
CANDIDATES = 100


@dataclass(frozen=True)
class Described:
    """A video of the collection."""

    stored: Floats
    """[T, D] of its frames"""
    edited: Floats
    """[T, D] of the same frames, edited"""


def cropped(picture: Image.Image) -> Image.Image:
    """The middle of a picture."""
    width, height = picture.size
    box = (0.15 * width, 0.15 * height, 0.85 * width, 0.85 * height)
    return picture.resize(picture.size, box=box)


def poor(picture: Image.Image) -> Image.Image:
    """A third of the size, and few bytes."""
    small = picture.resize((picture.width // 3, picture.height // 3))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=15)
    return Image.open(file).convert("RGB").resize(picture.size)


def dark(picture: Image.Image) -> Image.Image:
    """Half as bright, and grey."""
    return ImageEnhance.Brightness(picture.convert("L").convert("RGB")).enhance(0.5)


EDITS = (cropped, poor, dark)


def described(project: Project) -> dict[str, Described]:
    """All videos of a collection that have two frames or more, each with one of the edits."""
    embed = open_extractor(project, extras=False).embed
    side_px = project.config.backbone.crop_px
    videos: dict[str, Described] = {}
    for key in project.root.list_folders(STAGE):
        features = FeatureFile(project.shard(STAGE, key))
        frames = open_frames(project, key)
        for name in frames.video_ids:
            stored = features.regions(name)[:, 0].astype(np.float32)
            if len(stored) < 2:
                continue
            edit = EDITS[len(videos) % len(EDITS)]
            pictures = [
                edit(Image.open(io.BytesIO(jpeg)).convert("RGB")).resize((side_px, side_px))
                for jpeg in frames.read(name).jpegs
            ]
            pixels = np.stack([np.asarray(picture) for picture in pictures])
            edited = embed(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
            videos[name] = Described(stored, np.asarray(edited, np.float32)[:, 0])

    return videos


@dataclass(frozen=True)
class Indexes:
    """Both indexes of some videos."""

    frames: FrameIndex
    videos: FrameIndex
    num_videos: int

    def by_frames(self, query: Floats) -> list[str]:
        """Candidates by votes of frames."""
        times = np.arange(len(query))
        hits = self.frames.search_frames(query, HITS)
        voted = vote(
            hits,
            times,
            num_videos=self.num_videos,
            tolerance_s=1.0,
            num_hits=HITS,
            max_candidates=CANDIDATES,
        )
        return [candidate.video_id for candidate in voted]

    def by_videos(self, query: Floats) -> list[str]:
        """Candidates by one vector of each video."""
        return nearest_videos(self.videos, query[:, None], CANDIDATES)


def rows_of(name: str, vectors: Floats) -> pa.Table:
    """The rows of an index for frames, one per second."""
    values = pa.array(vectors.astype(np.float16).reshape(-1))
    return pa.table(
        {
            "video_id": [name] * len(vectors),
            "second": np.arange(len(vectors), dtype=np.float32),
            "hash": np.zeros(len(vectors), np.uint64),
            VECTOR: pa.FixedSizeListArray.from_arrays(values, vectors.shape[1]),
        }
    )


def indexes_of(videos: dict[str, Floats], folder: Path) -> Indexes:
    """Indexes in a folder, of videos by name."""
    dims = next(iter(videos.values())).shape[1]
    frames = create_index(folder / "frames", dims, {}, IndexSettings())
    frames.replace_shard("all", pa.concat_tables([rows_of(*item) for item in videos.items()]))
    whole = create_index(folder / "videos", dims, {}, IndexSettings())
    means = {name: vectors.mean(axis=0, keepdims=True) for name, vectors in videos.items()}
    whole.replace_shard("all", pa.concat_tables([rows_of(*item) for item in means.items()]))
    return Indexes(frames, whole, len(videos))


def middle(vectors: Floats) -> Floats:
    """Five frames in the middle of some."""
    first = max((len(vectors) - PART_FRAMES) // 2, 0)
    return vectors[first : first + PART_FRAMES]


Queries = Sequence[tuple[str, Floats]]
"""The name of what a query should find, and its frames."""


def measured(search: Callable[[Floats], list[str]], queries: Queries) -> dict[str, Any]:
    """How many queries are answered correctly, and how long one takes."""
    search(queries[0][1])  # opens what is opened once
    start = time.process_time()
    answers = [search(query) for _, query in queries]
    seconds = (time.process_time() - start) / len(queries)
    wanted = [name for name, _ in queries]
    pairs = list(zip(wanted, answers, strict=True))
    return {
        "queries": len(queries),
        "first": float(np.mean([names[:1] == [name] for name, names in pairs])),
        "of the first ten": float(np.mean([name in names[:10] for name, names in pairs])),
        "processor ms": seconds * 1000,
    }


def num_bytes(folder: Path) -> int:
    """Of all files."""
    return sum(
        os.path.getsize(Path(place) / name) for place, _, names in os.walk(folder) for name in names
    )


def trials(videos: dict[str, Described], folder: Path) -> Iterator[tuple[str, Indexes, Queries]]:
    """A name, what is searched, and the queries."""
    clips = indexes_of({name: video.stored for name, video in videos.items()}, folder / "clips")
    yield "whole videos", clips, [(name, video.edited) for name, video in videos.items()]
    yield "5 frames", clips, [(name, middle(video.edited)) for name, video in videos.items()]

    names = list(videos)
    films: dict[str, Floats] = {}
    parts: list[tuple[str, Floats]] = []
    for number in range(len(names) // FILM_VIDEOS):
        joined = names[number * FILM_VIDEOS : (number + 1) * FILM_VIDEOS]
        film = f"film {number}"
        films[film] = np.concatenate([videos[name].stored for name in joined])
        parts += [(film, middle(videos[name].edited)) for name in joined]

    yield "5 frames of a film", indexes_of(films, folder / "films"), parts


def main() -> None:
    options = parse(__doc__, config=Path(), folder=Path("video-vectors"))
    project = Project.open(options.config)
    rows = []
    for name, indexes, queries in trials(described(project), options.folder):
        rows.append({"query": name, "by": "frames"} | measured(indexes.by_frames, queries))
        rows.append({"query": name, "by": "videos"} | measured(indexes.by_videos, queries))

    for row in rows:
        kind = "films" if "film" in row["query"] else "clips"
        row["kB"] = num_bytes(options.folder / kind / row["by"]) / 1000

    show(rows)


if __name__ == "__main__":
    main()
