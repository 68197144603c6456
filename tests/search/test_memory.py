"""What a search takes of memory for rows that are not indexed yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hapvr.search.index import FrameIndex
from hapvr.search.settings import IndexSettings
from hapvr.search.vectors import VECTOR
from hapvr.seeding import numpy_rng
from tests.search.exact import unit, vector_column

QUERIES, ROWS, WIDTH = 200, 40_000, 256

SEARCH = r"""
import re, sys
from pathlib import Path
from hapvr.search.index import FrameIndex
from hapvr.search.settings import IndexSettings
from hapvr.seeding import numpy_rng


def peak_kib():
    return int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1])


queries, width = map(int, sys.argv[2:])
index = FrameIndex.open(Path(sys.argv[1]), settings=IndexSettings())
vectors = numpy_rng("queries").standard_normal((queries, width))
index.search_frames(vectors[:1], 1)
before = peak_kib()
found = index.search_frames(vectors, 100)
print(len(found), peak_kib() - before)
"""


@pytest.mark.slow
def test_rows_beside_the_index_are_read_in_batches(tmp_path: Path) -> None:
    """200 query frames against 40,000 rows beside an index: 50 MiB. The engine by itself takes 10 GiB for them."""
    index = FrameIndex.create(tmp_path / "index", WIDTH, {}, settings=IndexSettings(min_indexed_rows=256))
    rng = numpy_rng("rows")
    for shard, count in (("indexed", 10_000), ("beside", ROWS)):
        frames = vector_column(unit(rng.standard_normal((count, WIDTH))))
        rows = {
            "video_id": [f"{shard}.mp4"] * count,
            "second": pa.array(np.arange(count), pa.float32()),
            VECTOR: frames,
        }
        index.replace_shard(shard, pa.table(rows), pa.table({"video_id": [f"{shard}.mp4"], VECTOR: frames[:1]}))
        if shard == "indexed":
            index.optimise()
    assert index.status().unindexed_frames == ROWS
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, str(tmp_path / "index"), str(QUERIES), str(WIDTH)],
        capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found, grown_kib = map(int, done.stdout.split())
    assert found == QUERIES * 100
    assert grown_kib < 400 * 1024
