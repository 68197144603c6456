"""Batches of cached views. A batch is a function of (seed, number) alone, so any batch can be made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hapvr.config import Config
from hapvr.errors import DataError
from hapvr.labels.pairs import positive_pairs, video_pair_labels
from hapvr.labels.pseudo import pseudo_labels
from hapvr.provenance import Provenance
from hapvr.seeding import numpy_rng
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.open_files import allow_open_files
from hapvr.storage.shards import Shard
from hapvr.storage.views import EMBEDDINGS_STAGE, LABELS_STAGE, VIEWS_STAGE, LabelFile, ViewFile, ViewRow
from hapvr.train.batch import Batch, BatchSampler

FILES_PER_SHARD = 3
"""Views, embeddings and labels."""


class CachedViews(Dataset[Batch]):
    """Item `number` is the batch of that number: of each video `train.weak_views` weak and `train.strong_views` strong views.

    With `train.gather` a batch is that of all ranks, whose clips are compared with each other; without it, that of one
    rank alone. Pseudo labels are the stored ones, or made from the stored embeddings where `pseudo_labels` has other
    settings than those. Raises DataError without training videos, with a single one, or where views and labels do not
    belong together.
    """

    def __init__(
        self,
        root: DataRoot,
        shard_keys: Sequence[str],
        config: Config,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not shard_keys:
            raise DataError("training: the manifest has no training shards; give a source with split: train")
        self._root = root
        self._shard_keys = tuple(shard_keys)
        self._settings = config.train
        self._rates = config.pseudo_labels
        self._wanted = {"weak": config.train.weak_views, "strong": config.train.strong_views}
        self._shard_of: dict[str, int] = {}
        self._rows: dict[str, list[ViewRow]] = {}
        self._files: list[tuple[ViewFile, ViewFile, LabelFile]] | None = None
        _same_features(root, self._shard_keys)
        for number, key in enumerate(self._shard_keys):
            for row in _matching_rows(root, key):
                self._shard_of[row.video_id] = number
                self._rows.setdefault(row.video_id, []).append(row)
        self._uses_stored_labels = all(
            Shard(root, LABELS_STAGE, key).require({}).settings["pseudo_labels"] == self._rates.model_dump(mode="json")
            for key in self._shard_keys
        )
        self.sampler = BatchSampler.from_settings(self._rows, config.train, rank=rank, world_size=world_size)

    @property
    def identity(self) -> dict[str, str]:
        """Digests of the files that batches are read from, by stage and shard."""
        return {
            f"{stage}/{key}": Shard(self._root, stage, key).data_digest()
            for key in self._shard_keys
            for stage in (VIEWS_STAGE, LABELS_STAGE)
        }

    def __getitem__(self, number: int) -> Batch:
        videos = self.sampler.videos(number)
        own = self.sampler.rank_slice(videos)
        if not self._settings.gather:
            videos = videos[own]
            own = slice(0, len(videos))
        chosen = {video_id: self._choose(video_id, number) for video_id in videos}
        rows = [self._rows[video_id][index] for video_id in videos for index in chosen[video_id]]
        labels = video_pair_labels([{row.video_id, row.donor_id} - {""} for row in rows])
        views = sum(self._wanted.values())
        first, end = own.start * views, own.stop * views
        pairs = positive_pairs(labels, include_self=True)
        pairs = pairs[(pairs[:, 0] >= first) & (pairs[:, 0] < end)]
        return Batch(
            regions=torch.cat([self._open(video)[0].read(video)[chosen[video]] for video in videos[own]]),
            labels=labels,
            frame_labels=self._frame_labels(rows, pairs),
            pair_index=pairs,
            first_row=first,
            video_ids=tuple(row.video_id for row in rows),
            view_index=torch.tensor([row.view_index for row in rows]),
        )

    def finish(self, batch: Batch) -> Batch:
        """The batch as it is: everything was made before."""
        return batch

    def _choose(self, video_id: str, number: int) -> list[int]:
        rng = numpy_rng(self._settings.seed, "views", number, video_id)
        chosen = []
        for strength, count in self._wanted.items():
            left = [index for index, row in enumerate(self._rows[video_id]) if row.strength == strength]
            if len(left) < count:
                raise DataError(
                    f"training: {video_id} has {len(left)} {strength} views, and train.{strength}_views is {count}; "
                    f"lower that, or raise views.num_{strength} and materialise training_views again"
                )
            chosen += [left.pop(int(rng.integers(len(left)))) for _ in range(count)]
        return chosen

    def _frame_labels(self, rows: list[ViewRow], pairs: Tensor) -> Tensor:
        """Stored labels where both clips are of one video; all others are made from the clips' embeddings."""
        stored: dict[str, Tensor] = {}
        labels = []
        for query, reference in pairs.tolist():
            first, second = rows[query], rows[reference]
            if self._uses_stored_labels and first.video_id == second.video_id:
                if first.video_id not in stored:
                    stored[first.video_id] = self._open(first.video_id)[2].read(first.video_id)
                labels.append(stored[first.video_id][first.view_index, second.view_index])
            else:
                labels.append(pseudo_labels(self._embedding(first), self._embedding(second), self._rates))
        return torch.stack(labels)

    def _embedding(self, row: ViewRow) -> Tensor:
        return self._open(row.video_id)[1].read(row.video_id)[row.view_index].float()

    def _open(self, video_id: str) -> tuple[ViewFile, ViewFile, LabelFile]:
        if self._files is None:
            allow_open_files(FILES_PER_SHARD * len(self._shard_keys))
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


def _same_features(root: DataRoot, shard_keys: Sequence[str]) -> None:
    """Refuse shards whose views were made by different backbones, crops or whitenings: their values do not compare."""
    first, *others = [Shard(root, VIEWS_STAGE, key).require({}).settings["features"] for key in shard_keys]
    for key, features in zip(shard_keys[1:], others, strict=True):
        if differences := Provenance(VIEWS_STAGE, first).differences(Provenance(VIEWS_STAGE, features)):
            raise DataError(
                f"training: views of shard {key} are of another feature version than those of {shard_keys[0]}: "
                f"{'; '.join(differences)}. Materialise training_views of all shards again"
            )


def _matching_rows(root: DataRoot, key: str) -> list[ViewRow]:
    """The views of a shard; refused unless features, embeddings and labels are of the same views."""
    views, embeddings, labels = (Shard(root, stage, key) for stage in (VIEWS_STAGE, EMBEDDINGS_STAGE, LABELS_STAGE))
    found = views.require({})
    embeddings.require({name: found.settings[name] for name in ("views", "sampling", "crop_px")})
    made_from = labels.require({}).inputs[EMBEDDINGS_STAGE]
    rows = ViewFile(views).rows
    if made_from != embeddings.data_digest() or rows != ViewFile(embeddings).rows:
        raise DataError(
            f"training: training_views and pseudo_labels of shard {key} are not of the same views; materialise both again"
        )
    labelled = dict(labels.index().select("video_id", "num_rows").iter_rows())
    for video_id, views_of in Counter(row.video_id for row in rows).items():
        if labelled.get(video_id) != views_of**2:
            raise DataError(
                f"training: {video_id} of shard {key} has {views_of} views and {labelled.get(video_id, 0)} pseudo labels, "
                f"wanted {views_of**2}; materialise pseudo_labels of that shard again"
            )
    return rows
