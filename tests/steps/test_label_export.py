"""Pseudo labels as a table: `hapvr features labels`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hapvr.data.features import LABELS_STAGE, ViewFile
from hapvr.data.manifest import training_shard_keys
from hapvr.errors import DataError
from hapvr.steps.label_export import LABEL_SCHEMA, export_labels
from hapvr.steps.project import Project


@pytest.fixture
def key(small_project: Project) -> str:
    """A shard that has pseudo labels."""
    return training_shard_keys(small_project.root)[0]


def test_rows_are_the_pairs_that_a_batch_may_draw(
    small_project: Project, key: str, tmp_path: Path
) -> None:
    """One weak and two strong views of one window, in both directions, for each video."""
    file = tmp_path / "labels.parquet"
    num_pairs = export_labels(small_project, [key], file)
    table = pq.read_table(file)
    video_ids = ViewFile(small_project.shard(LABELS_STAGE, key)).video_ids
    expected = [
        (video_id, *pair) for video_id in video_ids for pair in ((0, 1), (0, 2), (1, 0), (2, 0))
    ]
    names = ("video_id", "query_view", "reference_view")
    assert table.schema == LABEL_SCHEMA
    assert num_pairs == len(expected)
    assert list(zip(*(table[name].to_pylist() for name in names), strict=True)) == expected


def test_labels_are_the_nearest_and_farthest_frames_of_the_teacher(
    small_project: Project, key: str, tmp_path: Path
) -> None:
    """Of four frames at rates of 0.35 two are at the top and two at the bottom; what ties with
    both, as frames of a still, is ignored."""
    file = tmp_path / "labels.parquet"
    export_labels(small_project, [key], file)
    row = pq.read_table(file).to_pylist()[0]
    embeddings = ViewFile(small_project.shard(LABELS_STAGE, key)).read(row["video_id"]).numpy()
    unit = embeddings.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=-1, keepdims=True)
    cosines = unit[row["query_view"]] @ unit[row["reference_view"]].T
    for labels, cosine in zip(row["labels"], cosines, strict=True):
        above = [(cosine > value + 1e-6).sum() for value in cosine]
        below = [(cosine < value - 1e-6).sum() for value in cosine]
        wanted = [int(a < 1.4) - int(b < 1.4) for a, b in zip(above, below, strict=True)]
        assert labels == wanted


def test_other_rates_need_no_teacher(small_project: Project, key: str, tmp_path: Path) -> None:
    """Labels are computed from what is stored."""
    few = small_project.config.model_copy(
        update={
            "pseudo_labels": small_project.config.pseudo_labels.model_copy(
                update={"top_rate": 0.25, "bottom_rate": 0.0}
            )
        }
    )
    file = tmp_path / "labels.parquet"
    export_labels(replace(small_project, config=few), [key], file)
    labels = {
        label for row in pq.read_table(file).to_pylist() for line in row["labels"] for label in line
    }
    assert labels <= {0, 1}


def test_labels_of_other_views_are_refused(
    small_project: Project, key: str, tmp_path: Path
) -> None:
    """The table would name views that are not stored."""
    config = small_project.config
    views = config.views.model_copy(update={"num_weak": config.views.num_weak + 1})
    changed_project = replace(small_project, config=config.model_copy(update={"views": views}))
    file = tmp_path / "labels.parquet"
    with pytest.raises(DataError, match="views"):
        export_labels(changed_project, [key], file)
    assert not file.exists()
