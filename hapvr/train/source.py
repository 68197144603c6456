"""Where a training's batches come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lightning_fabric import Fabric

from hapvr.config import Config
from hapvr.errors import DataError
from hapvr.storage.filesystem import DataRoot
from hapvr.train.batch import Batch
from hapvr.train.cached_views import CachedViews
from hapvr.train.gather import gather_of
from hapvr.train.labelled_clips import LabelledClips
from hapvr.train.labelled_pairs import LABELLED_NAME, LabelledPairs


class Source(Protocol):
    """Item `number` is what data workers make of a batch; `finish` does the rest in the training process."""

    side_dims: int
    """C of the pooled vectors that regions carry, 0 where they carry none."""

    @property
    def num_videos(self) -> int:
        """Videos that take part."""
        ...

    @property
    def batch_videos(self) -> int:
        """Videos, or labelled pairs, of a batch of all processes."""
        ...

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
    labelled: LabelledPairs | None = None,
) -> Source:
    """The source that `train.source` names. mined: pairs of videos that are labelled as positive, the surest first.

    labelled: what `labelled_pairs` reads. Raises DataError for data that is missing or does not belong together.
    """
    rank, world_size = fabric.global_rank, fabric.world_size
    if config.train.source == "labelled_pairs":
        if labelled is None:
            raise DataError(
                f"training: {LABELLED_NAME} is not in its folder; start the training again, which writes it"
            )
        return LabelledClips(root, training_shards, config, labelled, mined=mined, rank=rank, world_size=world_size)
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
