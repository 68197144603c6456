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

from hapvr.data.features import EXTRAS_SETTING, frame_part
from hapvr.data.shards import Shard, VideoRows
from hapvr.data.tensors import Columns, tensor_field

if TYPE_CHECKING:
    from torch import Tensor

VIEWS_STAGE = "training_views"
LABELS_STAGE = "pseudo_labels"
DRAWING_VERSION = 2
"""Changes with the rules by which clips are drawn; views of another version are made again. 2: several windows of each
video, donors in fixed groups."""


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


def view_fields(column: str, *, shape: Sequence[int]) -> tuple[pa.Field, ...]:
    """The columns of a view shard whose tensors are `column` of this shape, fp16."""
    return (
        pa.field("video_id", pa.string(), nullable=False),
        pa.field("view_index", pa.int32(), nullable=False),
        pa.field("strength", pa.string(), nullable=False),
        pa.field("operations", pa.string(), nullable=False),
        pa.field("donor_id", pa.string(), nullable=False),
        pa.field("source_index", pa.list_(pa.int32()), nullable=False),
        tensor_field(column, shape=shape, dtype="float16"),
    )


def view_columns(rows: Sequence[ViewRow], values: npt.NDArray[np.floating]) -> Columns:
    """The views of one video, column by column in the order of `view_fields`. values: [V, *shape]."""
    return (
        [row.video_id for row in rows],
        [row.view_index for row in rows],
        [row.strength for row in rows],
        [json.dumps(row.operations) for row in rows],
        [row.donor_id for row in rows],
        [row.source_index for row in rows],
        values,
    )


class ViewFile:
    """The views of one shard: a row group is a video, so one read gives all its views."""

    def __init__(self, shard: Shard, *, extras: bool = False) -> None:
        """extras: `read` gives frame extras, too, see `hapvr.model.frame_extras`; DataError where there are none."""
        index = shard.read()
        file, settings = shard.open_data(index), index.provenance.settings
        self.extras_dims: int = settings.get(EXTRAS_SETTING, 0)
        """C of the pooled vectors, 0 without any."""
        self._part = frame_part(shard, settings, extras=extras)
        with shard.corruption_errors():
            self.rows = [
                ViewRow(
                    **row
                    | {"operations": tuple(json.loads(row["operations"])), "source_index": tuple(row["source_index"])}
                )
                for row in file.read(columns=list(ROW_COLUMNS)).to_pylist()
            ]
            (tensors,) = set(file.schema_arrow.names) - set(ROW_COLUMNS)
        self._values = VideoRows(shard, [tensors], file=file, places=index.places())

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

        return torch.from_numpy(self._values.tensors(video_id, part=self._part))
