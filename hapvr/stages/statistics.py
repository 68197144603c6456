"""What a data root holds of features, from the indexes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress
from hapvr.storage.features import STAGE
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.shards import STATUS_OK, Shard


@dataclass(frozen=True)
class FeatureStatistics:
    """num_videos: with features; failures: the others by reason; frames_per_video: shortest, median, longest; num_bytes: of
    the data files; num_settings: 1 unless shards were made differently."""

    num_shards: int
    num_unfinished: int
    num_videos: int
    failures: dict[str, int]
    num_frames: int
    frames_per_video: tuple[int, int, int]
    num_bytes: int
    num_settings: int


def feature_statistics(
    root: DataRoot, keys: Iterable[str] | None = None, *, progress: Progress = no_progress
) -> FeatureStatistics:
    """Count what is stored. keys: None for every shard there is. Raises DataError where no shard is finished."""
    chosen = [Shard(root, STAGE, key) for key in (root.list_folders(STAGE) if keys is None else keys)]
    lengths: list[int] = []
    failures: Counter[str] = Counter()
    settings: set[str] = set()
    num_bytes = num_finished = 0
    for done, shard in enumerate(chosen, start=1):
        found = shard.provenance()
        if found is not None:
            index = shard.index()
            good = index["status"] == STATUS_OK
            lengths += index.filter(good)["num_rows"].to_list()
            failures.update(index.filter(~good)["reason"].to_list())
            settings.add(repr(sorted(found.settings.items())))
            num_bytes += root.num_bytes(shard.data_name)
            num_finished += 1
        progress(done, len(chosen))
    if not num_finished:
        raise DataError(
            f"features: none of {len(chosen)} shards below {root.url}/{STAGE} is finished; run `hapvr extract`"
        )
    lengths.sort()
    shown = (lengths[0], lengths[len(lengths) // 2], lengths[-1]) if lengths else (0, 0, 0)
    return FeatureStatistics(
        num_finished,
        len(chosen) - num_finished,
        len(lengths),
        dict(sorted(failures.items())),
        sum(lengths),
        shown,
        num_bytes,
        len(settings),
    )
