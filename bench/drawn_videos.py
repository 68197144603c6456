"""Large collections of frame vectors, drawn from those of a real one.

A tenth of the videos are real clips with noise, so each clip occurs many times. The others are
scenes of their own, with the mean and the covariance of real vectors, and move as real clips do.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hapvr.data.filesystem import DataRoot
from hapvr.scorer.blank import unit
from hapvr.search.current import current_index
from hapvr.search.descriptors import descriptor_shard, searchable
from hapvr.search.frame_index import vectors_of

Floats = npt.NDArray[np.float32]

REAL_RATE = 10
"""One of so many videos is a real clip with noise."""
NOISE = 0.25
"""Length of the noise of a stored frame; its vector has length 1."""
CHUNK_VIDEOS = 1000


@dataclass(frozen=True)
class DrawnVideos:
    """A collection that is drawn from real clips."""

    clips: Floats
    """[C, F, D], frames of real clips"""
    mean: Floats
    """[D], of real vectors"""
    basis: Floats
    """[E, D], whose rows, with random weights, add up to vectors of the real covariance"""

    def draw(self, first: int, count: int) -> tuple[Floats, npt.NDArray[np.intp]]:
        """Vectors [count, F, D] of the videos from `first` on, and the clip [count] of each that is
        a real one, -1 of the others."""
        rng = np.random.default_rng(first)
        clip_of = rng.integers(len(self.clips), size=count)
        weights = rng.standard_normal((count, len(self.basis)), np.float32)
        scenes = unit(self.mean + weights @ self.basis)
        frames = self.clips[clip_of]
        moving = scenes[:, None] + frames - frames.mean(axis=1, keepdims=True)
        is_real = (first + np.arange(count)) % REAL_RATE == 0
        vectors = unit(np.where(is_real[:, None, None], frames, moving))
        return self.noisy(vectors, NOISE, rng), np.where(is_real, clip_of, -1)

    def noisy(self, vectors: Floats, length: float, rng: np.random.Generator) -> Floats:
        """Vectors of unit length, with noise of this length."""
        noise = rng.standard_normal(vectors.shape, np.float32)
        return unit(vectors + noise * np.float32(length / np.sqrt(vectors.shape[-1])))


def drawn_from(data: str, num_frames: int) -> DrawnVideos:
    """Of the vectors of the index of a data root."""
    root = DataRoot(data)
    digest = current_index(root).digest
    clips = []
    vectors = []
    for key in root.list_folders(f"search/{digest}/descriptors"):
        rows = searchable(descriptor_shard(root, digest, key))
        names = np.array(rows["video_id"].to_pylist())
        of_shard = vectors_of(rows).astype(np.float32)
        vectors.append(of_shard)
        for name in dict.fromkeys(names.tolist()):
            frames = of_shard[names == name]
            places = np.linspace(0, len(frames) - 1, num_frames).round().astype(int)
            clips.append(frames[places])

    every = np.concatenate(vectors)
    mean = every.mean(axis=0)
    _, lengths, directions = np.linalg.svd(every - mean, full_matrices=False)
    basis = lengths[:, None] / np.sqrt(len(every)) * directions
    return DrawnVideos(np.stack(clips), mean, basis.astype(np.float32))


@dataclass(frozen=True)
class StoredVideos:
    """A drawn collection in a file, read as it is needed."""

    vectors: npt.NDArray[np.float16]
    """[N, F, D]"""
    clip_of: npt.NDArray[np.intp]
    """[N], -1 of a scene of its own"""

    def chunks(self) -> Iterator[tuple[int, Floats]]:
        """Number of the first video, and vectors of some."""
        for first in range(0, len(self.vectors), CHUNK_VIDEOS):
            yield first, self.vectors[first : first + CHUNK_VIDEOS].astype(np.float32)


def stored(drawn: DrawnVideos, path: Path, num_videos: int) -> StoredVideos:
    """Draw a collection into a file."""
    _, num_frames, dims = drawn.clips.shape
    shape = (num_videos, num_frames, dims)
    vectors = np.lib.format.open_memmap(path, "w+", np.float16, shape)
    clip_of = []
    for first in range(0, num_videos, CHUNK_VIDEOS):
        count = min(CHUNK_VIDEOS, num_videos - first)
        vectors[first : first + count], clips = drawn.draw(first, count)
        clip_of.append(clips)

    return StoredVideos(vectors, np.concatenate(clip_of))
