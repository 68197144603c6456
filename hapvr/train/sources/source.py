"""What every source of training batches is made of and gives."""

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
    """What a source of batches is made of.

    shard_keys: shards of the training split. folder: of the training run, with the files that
    `BatchSource.prepare` wrote. copies: see `hapvr.train.sampler.look_alikes`."""

    root: DataRoot
    shard_keys: tuple[str, ...]
    config: Config
    folder: Path
    copies: Mapping[str, str]
    ranks: Ranks


class BatchSource(Protocol):
    """Gives the batches of a training; data workers read items, which the process finishes.

    Item `number` is a function of `train.seed` and that number, so that a resumed training goes on
    with the batches that it would have had."""

    dims: int
    """D of the regions"""
    extras_dims: int
    """C of the pooled vectors that they carry, 0 where they carry none"""
    num_videos: int
    """that take part"""
    num_keys: int
    """videos whose vectors a memory bank may hold"""
    batch_items: int
    """items of a batch, each an anchor with its positive"""
    clips_per_item: int

    def __init__(self, inputs: SourceInputs) -> None: ...

    @staticmethod
    def reads(config: Config) -> tuple[str, ...]:
        """The stages whose shards it reads."""

    @staticmethod
    def frozen_networks(
        root: DataRoot, shard_keys: Sequence[str], config: Config
    ) -> dict[str, dict[str, Any]]:
        """Identity and precision of the networks that made, or make, what it reads: `backbone`, and
        `teacher` where there is one."""

    def __getitem__(self, number: int) -> Any:
        """What a data worker reads of a batch."""

    def finish(self, item: Any) -> Batch:
        """The batch of an item."""
