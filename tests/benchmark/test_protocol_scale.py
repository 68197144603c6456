"""Metrics of a result of FIVR-200K's size: time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.seeding import numpy_rng

CHILD = """
import resource, sys, time
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.protocol import evaluate
start = time.process_time()
result = evaluate(load_definition("fivr-200k"), sys.argv[1])
print(len(result.tasks), time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def write_random_similarities(path):
    """22,596,000 rows, a row group per 4,096 references."""
    definition = load_definition("fivr-200k")
    queries, rng = pa.array(definition.queries), numpy_rng("scale")
    schema = pa.schema([("query_id", pa.string()), ("reference_id", pa.string()), ("similarity", pa.float32())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, len(definition.database), 4096):
            references = pa.array(definition.database[start : start + 4096])
            size = len(references)
            columns = [
                queries.take(pa.array(np.repeat(np.arange(len(queries)), size))),
                references.take(pa.array(np.tile(np.arange(size), len(queries)))),
                pa.array(rng.standard_normal(len(queries) * size, dtype=np.float32)),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


@pytest.mark.slow
def test_fivr_200k_takes_less_than_30_seconds_and_4_gib(tmp_path):
    """Twelve tasks on 100 x 225,960 similarities, in processor time and peak memory of a process of its own."""
    write_random_similarities(tmp_path / "s.parquet")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "s.parquet")]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    num_tasks, seconds, peak_kib = (float(field) for field in output.split())
    assert num_tasks == 12
    assert seconds < 30
    assert peak_kib < 4 * 2**20
