"""Rows and tensors of single videos, out of files of any row groups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapvr.data.features import MAX_OPEN_FILES, FeatureFile, FeatureStore
from hapvr.data.filesystem import DataRoot
from hapvr.data.tensors import decode_tensors
from tests.data.test_shards import write_shard


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=8),
    row_group_rows=st.integers(1, 100),
    order=st.randoms(use_true_random=False),
)
def test_any_row_groups_read_as_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], row_group_rows: int, order: Any
) -> None:
    """Whatever row groups the writer makes, each video, and each part of one, equals its slice of the column, in any order."""
    root = DataRoot(tmp_path_factory.mktemp("root"))
    named = {f"v{number}": length for number, length in enumerate(lengths)}
    shard = write_shard(root, "s-00000", settings={}, row_group_rows=row_group_rows, lengths=named)
    data = shard.open_data()
    values = decode_tensors(data.read().column("regions"), data.schema_arrow.field("regions"))
    stored, ends = FeatureFile(shard), np.cumsum(lengths)
    numbers = list(range(len(lengths)))
    order.shuffle(numbers)
    for number in [*numbers, *range(len(lengths))]:
        wanted = values[ends[number] - lengths[number] : ends[number]]
        first, last = sorted(order.choices(range(lengths[number] + 1), k=2))
        assert np.array_equal(stored.regions(f"v{number}", first, last), wanted[first:last])
        found, times = stored.read(f"v{number}")
        assert np.array_equal(found, wanted)
        assert found.flags.owndata
        assert found.flags.writeable
        assert times == list(range(lengths[number]))


def test_a_store_opens_few_files_at_once(tmp_path: Path) -> None:
    """However many shards it has, so that a process's limit of open files does not bound a collection."""
    root = DataRoot(tmp_path)
    keys = [f"s-{number:05d}" for number in range(2 * MAX_OPEN_FILES)]
    for key in keys:
        write_shard(root, key, settings={}, lengths={f"{key} a": 2, f"{key} b": 1})
    before = len(os.listdir("/proc/self/fd"))
    store = FeatureStore(root, keys)
    for _ in range(2):
        most = 0
        for _, features in store.read([f"{key} a" for key in keys]):
            assert features.shape == (2, 9, 4)
            most = max(most, len(os.listdir("/proc/self/fd")) - before)
        assert most <= MAX_OPEN_FILES + 5
