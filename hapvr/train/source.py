"""Where a training's batches come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lightning_fabric import Fabric

from hapvr.config import Config
from hapvr.storage.filesystem import DataRoot
from hapvr.train.batch import Batch, BatchSampler
from hapvr.train.cached_views import CachedViews
from hapvr.train.gather import gather_of


class Source(Protocol):
    """Item `number` is what data workers make of a batch; `finish` does the rest in the training process."""

    sampler: BatchSampler
    side_dims: int
    """C of the pooled vectors that regions carry, 0 where they carry none."""

    @property
    def identity(self) -> dict[str, str]:
        """Digests of what batches are made from."""
        ...

    def __getitem__(self, number: int) -> Any: ...

    def finish(self, item: Any) -> Batch:
        """The batch of an item."""
        ...


def open_source(
    config: Config,
    root: DataRoot,
    training_shards: Sequence[str],
    fabric: Fabric,
    *,
    mined: Sequence[tuple[str, str]] = (),
) -> Source:
    """The source that `train.source` names. mined: pairs of videos that are labelled as positive, the surest first.

    Raises DataError for data that is missing or does not belong together.
    """
    rank, world_size = fabric.global_rank, fabric.world_size
    if config.train.source == "cached_views":
        return CachedViews(root, training_shards, config, mined=mined, rank=rank, world_size=world_size)
    from hapvr.train.online_views import OnlineViews  # loads both frozen networks' libraries

    gather = gather_of(fabric) if config.train.gather else None
    return OnlineViews(
        root,
        training_shards,
        config,
        device=fabric.device,
        mined=mined,
        gather=gather,
        rank=rank,
        world_size=world_size,
    )
