"""View shards: one row per augmented clip, the views of a video contiguous, weak ones first, and one row group.

`training_views` holds region features [T, 9, D]; `pseudo_labels` the teacher's embeddings [T, D'] of the same views, row
for row, of which training makes the ternary labels of the frames of each pair of clips.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from hapvr.data.features import EXTRAS_SETTING, frame_part
from hapvr.data.shards import Shard, VideoRows
from hapvr.data.tensors import tensor_field

if TYPE_CHECKING:
    from torch import Tensor

VIEWS_STAGE = "training_views"
LABELS_STAGE = "pseudo_labels"
DRAWING_VERSION = 3
"""Changes with the rules by which clips are drawn; views of another version are made again. 3: crops of torchvision."""

INDEX_COLUMNS = (pa.field("num_frames", pa.int32(), nullable=False),)
"""Sampled frames of the video."""


def view_fields(column: str, *, shape: Sequence[int]) -> tuple[pa.Field, ...]:
    """The columns of a view shard whose tensors are `column` of this shape, fp16; `donor_id` is the video that is combined
    with the view, "" for none."""
    return (
        pa.field("video_id", pa.string(), nullable=False),
        pa.field("donor_id", pa.string(), nullable=False),
        tensor_field(column, shape=shape, dtype="float16"),
    )


class ViewFile(VideoRows):
    """The views of one shard; `dims` is D, the last axis of the stored tensors."""

    def __init__(self, shard: Shard, *, extras: bool = False) -> None:
        """extras: `read` gives frame extras, too, see `hapvr.model.frame_extras`; DataError where there are none."""
        super().__init__(shard)
        self.extras_dims: int = self.settings.get(EXTRAS_SETTING, 0)
        """C of the pooled vectors, 0 without any."""
        self._part = frame_part(shard, self.settings, extras=extras)
        self.donors: dict[str, list[str]] = {}
        """Of each view of a video the one that is combined with it, "" for none."""
        with shard.corruption_errors():
            for row in self._file.read(columns=["video_id", "donor_id"]).to_pylist():
                self.donors.setdefault(row["video_id"], []).append(row["donor_id"])

    def read(self, video_id: str) -> Tensor:
        """All views of a video: [V, *shape] fp16, weak ones first; [V, T, R + k, D] with extras."""
        import torch  # those who only verify files need none

        return torch.from_numpy(self.tensors(video_id, part=self._part))
