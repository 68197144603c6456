"""The interface of every source of training batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from hapvr.config import Config
from hapvr.data.features import STAGE, FeatureFile
from hapvr.data.filesystem import DataRoot
from hapvr.data.shards import Shard
from hapvr.train.batch import Batch
from hapvr.train.pair_labels import video_length_s
from hapvr.train.ranks import Ranks


class StoredLabels(Protocol):
    """What people said of the videos of a training, which keeps the labels it began with."""

    @property
    def digest(self) -> str:
        """Of all labels."""

    def write(self, folder: Path) -> None:
        """Store them in the folder of a training."""


@dataclass(frozen=True)
class LabelInputs:
    """What labels are read from, and the videos of the training with which they are checked."""

    root: DataRoot
    shard_keys: tuple[str, ...]
    """of the training split"""
    config: Config
    resolve: Callable[[Path], Path]
    """makes a path of the configuration absolute"""
    begun: Path | None
    """the folder of a training that goes on with the labels it began with; None: a new one"""

    @property
    def video_ids(self) -> Collection[str]:
        """The training videos that have features."""
        return self._file_of.keys()

    def length_s(self, video_id: str) -> float:
        """Seconds of one of them."""
        return video_length_s(self._file_of[video_id].times(video_id))

    @cached_property
    def _file_of(self) -> dict[str, FeatureFile]:
        files = [FeatureFile(Shard(self.root, STAGE, key)) for key in self.shard_keys]
        return {video_id: file for file in files for video_id in file.video_ids}


@dataclass(frozen=True)
class SourceInputs:
    """What a source of batches is made from.

    shard_keys: shards of the training split. folder: of the training run, with the labels that
    `BatchSource.labels` gave. copies: see `hapvr.train.sampler.look_alikes`."""

    root: DataRoot
    shard_keys: tuple[str, ...]
    config: Config
    folder: Path
    copies: Mapping[str, str]
    ranks: Ranks


class BatchSource(Protocol):
    """Gives the batches of a training: data workers read items, and the training process finishes
    them.

    Item `number` is a function of `train.seed` and that number, so a resumed training goes on with
    the same batches."""

    dims: int
    """D of the regions"""
    extras_dims: int
    """C of the pooled vectors that they carry, 0 where they carry none"""
    num_videos: int
    """the videos that take part"""
    num_keys: int
    """videos whose vectors a memory bank may hold"""
    batch_items: int
    """items of a batch, each an anchor with its positive"""
    clips_per_item: int

    def __init__(self, inputs: SourceInputs) -> None: ...

    @staticmethod
    def reads(config: Config) -> tuple[str, ...]:
        """The stages whose shards the source reads."""

    @staticmethod
    def frozen_networks(
        root: DataRoot, shard_keys: Sequence[str], config: Config
    ) -> dict[str, dict[str, Any]]:
        """Identity and precision of the networks that made, or make, the data: `backbone`, and
        `teacher` where there is one."""

    @staticmethod
    def labels(inputs: LabelInputs) -> StoredLabels | None:
        """The labels of the configuration, or those with which a training began; None where the
        source reads none. Raises DataError for labels that do not fit the videos."""

    def __getitem__(self, number: int) -> Any:
        """What a data worker reads of a batch."""

    def finish(self, item: Any) -> Batch:
        """The batch of an item."""
