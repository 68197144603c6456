"""Pseudo labels as a table: how the teacher labels the frames of the stored views.

A training computes these labels from the stored embeddings, so other rates do not need the teacher
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hapvr.data.features import LABELS_STAGE, ViewFile
from hapvr.data.shards import Shard
from hapvr.files import write_atomic
from hapvr.networks.backbone import pseudo_labels
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project

LABEL_SCHEMA = pa.schema(
    [
        pa.field("video_id", pa.string()),
        pa.field("query_view", pa.int32()),
        pa.field("reference_view", pa.int32()),
        pa.field("labels", pa.list_(pa.list_(pa.int8()))),
    ]
)
"""A row for each pair of views; `labels` is [T, T], one row for each frame of the query."""


def export_labels(
    project: Project,
    shard_keys: Sequence[str],
    file: Path,
    *,
    progress: Progress = no_progress,
) -> int:
    """Write the pseudo labels (HAP-VR Eq. 14) of the stored views as Parquet, see LABEL_SCHEMA.

    The rows are the pairs that a batch may draw of one video: a weak and a strong view of one
    window, in both directions. Labels follow the rates of the configuration.

    Returns: the number of pairs.
    Raises: DataError for shards without pseudo labels, or with those of other views.
    """
    num_pairs = 0
    with (
        write_atomic(file) as part,
        pq.ParquetWriter(part, LABEL_SCHEMA, compression="zstd") as out,
    ):
        for number, key in enumerate(shard_keys, start=1):
            for table in _tables(project, key):
                out.write_table(table)
                num_pairs += len(table)

            progress(number, len(shard_keys))

    return num_pairs


def _tables(project: Project, key: str) -> Iterator[pa.Table]:
    """The rows of each video of a shard."""
    views = project.config.views
    shard = Shard(project.root, LABELS_STAGE, key)
    shard.require({"views": views.model_dump(mode="json")})
    embeddings_of = ViewFile(shard)
    pairs = list(_drawn_pairs(project))
    queries = [query for query, _ in pairs]
    references = [reference for _, reference in pairs]
    for video_id in embeddings_of.video_ids:
        embeddings = embeddings_of.read(video_id).float()
        labels = pseudo_labels(
            embeddings[queries], embeddings[references], project.config.pseudo_labels
        )
        yield pa.table(
            {
                "video_id": [video_id] * len(pairs),
                "query_view": queries,
                "reference_view": references,
                "labels": labels.tolist(),
            },
            schema=LABEL_SCHEMA,
        )


def _drawn_pairs(project: Project) -> Iterator[tuple[int, int]]:
    """The pairs of views of one video, by number, that a batch may compare."""
    views = project.config.views
    for window in range(views.num_windows):
        weak, strong = views.indices_of(window)
        yield from product(weak, strong)
        yield from product(strong, weak)
