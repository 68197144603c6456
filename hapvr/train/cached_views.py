"""Batches of cached views. A batch is a function of (seed, number) alone, so any batch can be made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hapvr.augment.settings import ViewsConfig
from hapvr.config import Config
from hapvr.errors import DataError
from hapvr.labels.pairs import KnownPairs, positive_pairs, video_pair_labels
from hapvr.labels.pseudo import pseudo_labels
from hapvr.model.settings import needs_side
from hapvr.provenance import Provenance
from hapvr.seeding import numpy_rng
from hapvr.storage.filesystem import DataRoot, allow_open_files
from hapvr.storage.shards import Shard
from hapvr.storage.views import (
    DRAWING_VERSION,
    EMBEDDINGS_STAGE,
    LABELS_STAGE,
    VIEWS_STAGE,
    LabelFile,
    ViewFile,
    ViewRow,
)
from hapvr.train.batch import Batch, BatchSampler, join_groups, largest_group

FILES_PER_SHARD = 3
"""Views, embeddings and labels."""


class CachedViews(Dataset[Batch]):
    """Item `number` is the batch of that number: of each video `train.weak_views` weak and `train.strong_views` strong views.

    The views of one video are of one of its windows, drawn by (train.seed, number). A clip that shows a second video is
    drawn where that video is in the batch, so that its label says so (see `BatchSampler` for the one exception).

    With `train.gather` a batch is that of all ranks, whose clips are compared with each other; without it, that of one
    rank alone. Pseudo labels are the stored ones, or made from the stored embeddings where `pseudo_labels` has other
    settings than those. mined: pairs of videos that are labelled as positive, the surest first; they are drawn into the same
    batch where its size allows that. Raises DataError without training videos, with a single one, or where views and labels do not
    belong together.
    """

    def __init__(
        self,
        root: DataRoot,
        shard_keys: Sequence[str],
        config: Config,
        *,
        mined: Sequence[tuple[str, str]] = (),
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
        self._side = needs_side(config.train.network)
        self.side_dims = 0
        self._known = KnownPairs(mined)
        self._shard_of: dict[str, int] = {}
        self._rows: dict[str, list[ViewRow]] = {}
        self._files: list[tuple[ViewFile, ViewFile, LabelFile]] | None = None
        _same_features(root, self._shard_keys)
        for number, key in enumerate(self._shard_keys):
            file = ViewFile(Shard(root, VIEWS_STAGE, key), side=self._side)
            self.side_dims = file.side_dims if self._side else 0
            for row in _matching_rows(root, key, file, config.views):
                self._shard_of[row.video_id] = number
                self._rows.setdefault(row.video_id, []).append(row)
        self._uses_stored_labels = all(
            Shard(root, LABELS_STAGE, key).require({}).settings["pseudo_labels"] == self._rates.model_dump(mode="json")
            for key in self._shard_keys
        )
        self._windows = {
            video_id: _windows_of(rows, config.views, self._wanted) for video_id, rows in self._rows.items()
        }
        self.sampler = BatchSampler.from_settings(
            self._rows,
            config.train,
            rank=rank,
            world_size=world_size,
            known=self._known,
            groups=join_groups(
                _linked_videos(self._rows), mined, largest=largest_group(config.train.batch_videos // world_size)
            ),
            alone={video_id for video_id in self._rows if self._usable_windows(video_id, ())},
        )

    @property
    def num_videos(self) -> int:
        """Training videos that take part."""
        return len(self.sampler.video_ids)

    @property
    def batch_videos(self) -> int:
        """Videos of a batch of all processes."""
        return self.sampler.batch_videos

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
        together = set(videos)
        chosen = {video_id: self._choose(video_id, number, together) for video_id in videos}
        rows = [self._rows[video_id][index] for video_id in videos for index in chosen[video_id]]
        sources = [{row.video_id, row.donor_id} - {""} for row in rows]
        labels = video_pair_labels(sources, self._known)
        views = sum(self._wanted.values())
        first, end = own.start * views, own.stop * views
        # A mined pair says nothing of frames.
        pairs = positive_pairs(video_pair_labels(sources), include_self=True)
        pairs = pairs[(pairs[:, 0] >= first) & (pairs[:, 0] < end)]
        return Batch(
            regions=torch.cat([self._open(video)[0].read(video)[chosen[video]] for video in videos[own]]),
            labels=labels,
            frame_labels=self._frame_labels(rows, pairs),
            pair_index=pairs,
            first_row=first,
            video_ids=tuple(row.video_id for row in rows),
            view_index=torch.tensor([row.view_index for row in rows]),
            source_ids=self.sampler.numbers((row.video_id, row.donor_id) for row in rows),
            num_frames=self._num_frames(rows),
        )

    def finish(self, batch: Batch) -> Batch:
        """The batch as it is: everything was made before."""
        return batch

    def _choose(self, video_id: str, number: int, videos: Collection[str]) -> list[int]:
        """Positions among the video's rows: views of one window, whose donors are among `videos`."""
        rng = numpy_rng(self._settings.seed, "views", number, video_id)
        usable = self._usable_windows(video_id, videos) or self._windows[video_id]
        window = usable[int(rng.integers(len(usable)))]
        chosen = []
        for strength, count in self._wanted.items():
            left = list(window[strength])
            chosen += [left.pop(int(rng.integers(len(left)))) for _ in range(count)]
        return chosen

    def _usable_windows(self, video_id: str, videos: Collection[str]) -> list[dict[str, list[int]]]:
        """Of each window with enough views the positions of weak and strong ones that need no video but `videos`."""
        rows = self._rows[video_id]
        found = [
            {
                strength: [index for index in indices if not rows[index].donor_id or rows[index].donor_id in videos]
                for strength, indices in window.items()
            }
            for window in self._windows[video_id]
        ]
        return [window for window in found if all(len(window[name]) >= count for name, count in self._wanted.items())]

    def _num_frames(self, rows: list[ViewRow]) -> Tensor | None:
        """Of each clip as many frames as its video has, which a weak view shows all of unless it is a shorter part."""
        if self._settings.repeat_short_clips:
            return None
        shown = {row.video_id: len(set(self._rows[row.video_id][0].source_index)) for row in rows}
        return torch.tensor([shown[row.video_id] for row in rows])

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
                    ViewFile(Shard(self._root, VIEWS_STAGE, key), side=self._side),
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


def _windows_of(rows: Sequence[ViewRow], config: ViewsConfig, wanted: Mapping[str, int]) -> list[dict[str, list[int]]]:
    """For each window of a video the positions of its weak and of its strong views. Raises DataError for too few."""
    windows: list[dict[str, list[int]]] = [{"weak": [], "strong": []} for _ in range(config.num_windows)]
    for position, row in enumerate(rows):
        windows[config.window_of(row.view_index)][row.strength].append(position)
    for strength, count in wanted.items():
        least = min(len(window[strength]) for window in windows)
        if least < count:
            raise DataError(
                f"training: {rows[0].video_id} has {least} {strength} views in a window, and train.{strength}_views is "
                f"{count}; lower that, or raise views.num_{strength} and materialise training_views again"
            )
    return windows


def _linked_videos(rows: Mapping[str, Sequence[ViewRow]]) -> list[list[str]]:
    """Groups of videos whose clips show each other; videos without such clips are in none."""
    group_of = {video_id: {video_id} for video_id in rows}
    for video_id, views in rows.items():
        for row in views:
            if row.donor_id and group_of[row.donor_id] is not group_of[video_id]:
                joined = group_of[video_id] | group_of[row.donor_id]
                group_of |= dict.fromkeys(joined, joined)
    groups = {id(group): sorted(group) for group in group_of.values() if len(group) > 1}
    return list(groups.values())


def _matching_rows(root: DataRoot, key: str, file: ViewFile, config: ViewsConfig) -> list[ViewRow]:
    """The views of a shard, of that file; refused unless features, embeddings and labels are of the same views, drawn as configured."""
    views, embeddings, labels = (Shard(root, stage, key) for stage in (VIEWS_STAGE, EMBEDDINGS_STAGE, LABELS_STAGE))
    found = views.require({"drawing": DRAWING_VERSION, "views": config.model_dump(mode="json")})
    embeddings.require({name: found.settings[name] for name in ("drawing", "views", "sampling", "crop_px")})
    made_from = labels.require({}).inputs[EMBEDDINGS_STAGE]
    rows = file.rows
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
