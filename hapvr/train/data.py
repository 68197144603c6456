"""Batches of cached views. A batch is a function of (seed, step) alone, so any step can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hapvr.config import PseudoLabelConfig
from hapvr.errors import DataError
from hapvr.labels.pairs import positive_pairs, video_pair_labels
from hapvr.labels.pseudo import pseudo_labels
from hapvr.seeding import numpy_rng
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.shards import Shard
from hapvr.storage.views import EMBEDDINGS_STAGE, LABELS_STAGE, VIEWS_STAGE, LabelFile, ViewFile, ViewRow


@dataclass(frozen=True)
class Batch:
    """Two views, weak then strong, of each of V videos: B = 2 V clips.

    regions: [B, T, R, D] fp16; labels: int8 [B, B], 1 where two clips share a source video, -1 elsewhere;
    frame_labels: int8 [P, T, T] pseudo labels of the positive pairs pair_index, int64 [P, 2], self pairs included;
    video_ids: the B clips' videos; view_index: int64 [B].
    """

    regions: Tensor
    labels: Tensor
    frame_labels: Tensor
    pair_index: Tensor
    video_ids: tuple[str, ...]
    view_index: Tensor


class CachedViews(Dataset[Batch]):
    """Item `step` is the batch of that step.

    Videos are drawn by epoch: a seeded permutation of all videos, cut into batches of `batch_videos`, the rest of an
    epoch left out. Rank r of `world_size` gets every world_size-th video of the batch.
    Raises DataError without training videos, with a single one, or where views and labels do not belong together.
    """

    def __init__(
        self,
        root: DataRoot,
        shard_keys: Sequence[str],
        *,
        batch_videos: int,
        seed: int,
        rates: PseudoLabelConfig,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not shard_keys:
            raise DataError("training: the manifest has no training shards; give a source with split: train")
        self._root = root
        self._shard_keys = tuple(shard_keys)
        self._seed = seed
        self._rates = rates
        self._rank = rank
        self._world_size = world_size
        self._shard_of: dict[str, int] = {}
        self._rows: dict[str, list[ViewRow]] = {}
        self._files: list[tuple[ViewFile, ViewFile, LabelFile]] | None = None
        for number, key in enumerate(self._shard_keys):
            for row in _matching_rows(root, key, rates):
                self._shard_of[row.video_id] = number
                self._rows.setdefault(row.video_id, []).append(row)
        self.video_ids = tuple(sorted(self._rows))
        if len(self.video_ids) < 2 * world_size:
            raise DataError(
                f"training: {len(self.video_ids)} training videos have views, and negatives need at least "
                f"{2 * world_size}; add videos, or see the reasons in the index of training_views"
            )
        # A small collection still trains: the batch is as large as it allows.
        self.batch_videos = min(batch_videos, len(self.video_ids) // world_size * world_size)

    def batch_video_ids(self, step: int) -> list[str]:
        """The videos of a step, of all ranks."""
        per_epoch = len(self.video_ids) // self.batch_videos
        epoch, position = divmod(step, per_epoch)
        order = numpy_rng(self._seed, "epoch", epoch).permutation(len(self.video_ids))
        start = position * self.batch_videos
        return [self.video_ids[index] for index in order[start : start + self.batch_videos]]

    def __getitem__(self, step: int) -> Batch:
        videos = self.batch_video_ids(step)[self._rank :: self._world_size]
        regions, embeddings, rows = [], [], []
        for video_id in videos:
            views, teacher, _ = self._open(video_id)
            chosen = self._choose(video_id, step)
            regions.append(views.read(video_id)[chosen])
            embeddings.append(teacher.read(video_id)[chosen])
            rows += [self._rows[video_id][index] for index in chosen]
        labels = video_pair_labels([{row.video_id, row.donor_id} - {""} for row in rows])
        pairs = positive_pairs(labels, include_self=True)
        return Batch(
            regions=torch.cat(regions),
            labels=labels,
            frame_labels=self._frame_labels(rows, torch.cat(embeddings), pairs),
            pair_index=pairs,
            video_ids=tuple(row.video_id for row in rows),
            view_index=torch.tensor([row.view_index for row in rows]),
        )

    def _choose(self, video_id: str, step: int) -> list[int]:
        rng = numpy_rng(self._seed, "views", step, video_id)
        rows = self._rows[video_id]
        return [
            int(rng.choice([index for index, row in enumerate(rows) if row.strength == strength]))
            for strength in ("weak", "strong")
        ]

    def _frame_labels(self, rows: list[ViewRow], embeddings: Tensor, pairs: Tensor) -> Tensor:
        """Stored labels where both clips are of one video; pairs that share only a donor are labelled here."""
        stored = {row.video_id: self._open(row.video_id)[2].read(row.video_id) for row in rows}
        labels = []
        for query, reference in pairs.tolist():
            first, second = rows[query], rows[reference]
            if first.video_id == second.video_id:
                labels.append(stored[first.video_id][first.view_index, second.view_index])
            else:
                labels.append(
                    pseudo_labels(
                        embeddings[query].float(),
                        embeddings[reference].float(),
                        top_rate=self._rates.top_rate,
                        bottom_rate=self._rates.bottom_rate,
                        exact=self._rates.exact,
                    )
                )
        return torch.stack(labels)

    def _open(self, video_id: str) -> tuple[ViewFile, ViewFile, LabelFile]:
        if self._files is None:
            self._files = [
                (
                    ViewFile(Shard(self._root, VIEWS_STAGE, key)),
                    ViewFile(Shard(self._root, EMBEDDINGS_STAGE, key)),
                    LabelFile(Shard(self._root, LABELS_STAGE, key)),
                )
                for key in self._shard_keys
            ]
        return self._files[self._shard_of[video_id]]

    def __getstate__(self) -> dict[str, object]:
        # Open files do not travel to data workers; each opens its own.
        return self.__dict__ | {"_files": None}


def _matching_rows(root: DataRoot, key: str, rates: PseudoLabelConfig) -> list[ViewRow]:
    """The views of a shard; refused unless features, embeddings and labels are of the same views, the labels of these rates."""
    views, embeddings, labels = (Shard(root, stage, key) for stage in (VIEWS_STAGE, EMBEDDINGS_STAGE, LABELS_STAGE))
    found = views.require({})
    embeddings.require({name: found.settings[name] for name in ("views", "sampling", "crop_px")})
    made_from = labels.require({"pseudo_labels": rates.model_dump(mode="json")}).inputs[EMBEDDINGS_STAGE]
    rows = ViewFile(views).rows
    if made_from != embeddings.data_digest() or rows != ViewFile(embeddings).rows:
        raise DataError(
            f"training: training_views and pseudo_labels of shard {key} are not of the same views; materialise both again"
        )
    return rows
