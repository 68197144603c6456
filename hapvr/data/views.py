"""View shards: one row per augmented clip, the views of a video contiguous and one row group.

`training_views` holds region features [T, 9, D]; `pseudo_labels` the teacher's embeddings [T, D'] of the same views, row
for row, of which training makes the ternary labels of the frames of each pair of clips.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.data.features import extras_fields, joined, stored_extras_dims
from hapvr.data.shards import Shard, VideoRows
from hapvr.data.tensors import Columns, tensor_field

if TYPE_CHECKING:
    from torch import Tensor

VIEWS_STAGE = "training_views"
LABELS_STAGE = "pseudo_labels"
DRAWING_VERSION = 3
"""Changes with the rules by which clips are drawn; views of another version are made again. 3: crops of torchvision."""


ROW_COLUMNS = ("video_id", "view_index", "strength", "operations", "donor_id", "source_index")


@dataclass(frozen=True)
class ViewRow:
    """What a view is: its index among the video's views, strength, operations, donor video ("" if none), source frames [T]."""

    video_id: str
    view_index: int
    strength: str
    operations: tuple[str, ...]
    donor_id: str
    source_index: tuple[int, ...]


def view_fields(column: str, *, shape: Sequence[int], extras_dims: int = 0) -> tuple[pa.Field, ...]:
    """The columns of a view shard whose tensors are `column` of this shape, fp16.

    extras_dims: C of the pooled vectors of each frame, 0 for views without them; shape[0] is then the number of frames.
    """
    return (
        pa.field("video_id", pa.string(), nullable=False),
        pa.field("view_index", pa.int32(), nullable=False),
        pa.field("strength", pa.string(), nullable=False),
        pa.field("operations", pa.string(), nullable=False),
        pa.field("donor_id", pa.string(), nullable=False),
        pa.field("source_index", pa.list_(pa.int32()), nullable=False),
        tensor_field(column, shape=shape, dtype="float16"),
        *extras_fields(extras_dims, shape=shape[:1]),
    )


def view_columns(rows: Sequence[ViewRow], *values: npt.NDArray[np.floating]) -> Columns:
    """The views of one video, column by column in the order of `view_fields`.

    values: [V, *shape], and pooled [V, T, C] and magnitude [V, T] where the shard has them.
    """
    return (
        [row.video_id for row in rows],
        [row.view_index for row in rows],
        [row.strength for row in rows],
        [json.dumps(row.operations) for row in rows],
        [row.donor_id for row in rows],
        [row.source_index for row in rows],
        *values,
    )


class ViewFile:
    """The views of one shard: a row group is a video, so one read gives all its views."""

    def __init__(self, shard: Shard, *, extras: bool = False) -> None:
        """extras: `read` appends pooled vectors and magnitudes, see `hapvr.model.frame_extras`; DataError where there are none."""
        file = shard.open_data()
        self.extras_dims = stored_extras_dims(shard, file, required=extras)
        """C of the pooled vectors, 0 without any."""
        with shard.corruption_errors():
            self.rows = [
                ViewRow(
                    **row
                    | {"operations": tuple(json.loads(row["operations"])), "source_index": tuple(row["source_index"])}
                )
                for row in file.read(columns=list(ROW_COLUMNS)).to_pylist()
            ]
            tensors = [name for name in file.schema_arrow.names if name not in ROW_COLUMNS]
        self._values = VideoRows(shard, tensors if extras else tensors[:1], file=file)

    @property
    def dims(self) -> int:
        """D, the last axis of the stored tensors."""
        return self._values.dims

    @property
    def video_ids(self) -> list[str]:
        """Videos in file order."""
        return self._values.video_ids

    def read(self, video_id: str) -> Tensor:
        """All views of a video: [V, *shape] fp16, in view_index order; [V, T, R + k, D] with extras."""
        import torch  # those who only verify files need none

        return torch.from_numpy(joined(self._values.tensors(video_id)))
