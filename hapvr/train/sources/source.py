"""The interface of every source of training batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hapvr.config import Config
from hapvr.data.filesystem import DataRoot
from hapvr.train.batch import Batch
from hapvr.train.ranks import Ranks


@dataclass(frozen=True)
class SourceInputs:
    """What a source of batches is made from.

    shard_keys: shards of the training split. folder: of the training run, with the files that
    `BatchSource.prepare` wrote. copies: see `hapvr.train.sampler.look_alikes`."""

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

    def __getitem__(self, number: int) -> Any:
        """What a data worker reads of a batch."""

    def finish(self, item: Any) -> Batch:
        """The batch of an item."""
