"""The scoring engine against the network, one pair at a time."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from hapvr.benchmark.definition import BenchmarkDefinition, Task
from hapvr.benchmark.scoring import ScoringSettings, score_benchmark
from hapvr.errors import DataError
from hapvr.model.network import SimilarityNetwork
from hapvr.seeding import torch_rng

DIMS, REGIONS = 16, 9


class Features:
    """Features in memory, read in the order they were given; `fail_after` stops a read as a killed run would."""

    def __init__(self, features, fail_after=None):
        self.features, self.fail_after = features, fail_after

    def available(self):
        return set(self.features)

    def read(self, video_ids):
        wanted = set(video_ids)
        for number, (video, features) in enumerate(item for item in self.features.items() if item[0] in wanted):
            if self.fail_after is not None and number == self.fail_after:
                raise KeyboardInterrupt
            yield video, features


def random_features(names, *, dims=DIMS, lengths=(5, 9, 4, 30, 1, 12)):
    rng = torch_rng(0, "features")
    made = {}
    for index, name in enumerate(names):
        regions = torch.randn(lengths[index % len(lengths)], REGIONS, dims, generator=rng)
        made[name] = torch.nn.functional.normalize(regions, dim=-1)
    return made


def make_network(**options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SimilarityNetwork(dims=DIMS, **options).eval()


def make_definition(num_queries=3, num_references=11):
    queries = tuple(f"q{i}" for i in range(num_queries))
    database = tuple(f"r{i}" for i in range(num_references))
    labels = pl.DataFrame({"query_id": ["q0"], "reference_id": ["r0"], "label": ["ND"]})
    tasks = (Task(name="mAP", metric="mAP", positives=frozenset({"ND"})),)
    return BenchmarkDefinition(
        name="small", kind="clips", queries=queries, database=database, labels=labels, tasks=tasks
    )


def pairwise_scores(network, definition, features, *, symmetric=False):
    rows = []
    with torch.inference_mode():
        for query in definition.queries:
            for reference in definition.database:
                q, r = network.embed(features[query])[None], network.embed(features[reference])[None]
                score = network.score(q, r)
                rows.append(float((score + network.score(r, q)) / 2 if symmetric else score))
    return np.array(rows).reshape(len(definition.queries), -1)


def as_matrix(path, definition):
    table = pl.read_parquet(path).with_columns(pl.col("query_id", "reference_id").cast(pl.String))
    return np.array(
        [
            [table.filter((pl.col("query_id") == q) & (pl.col("reference_id") == r))["similarity"].item()
             for r in definition.database]
            for q in definition.queries
        ]
    )  # fmt: skip


@pytest.mark.parametrize("symmetric", [False, True])
def test_score_benchmark_equals_one_pair_at_a_time(tmp_path, symmetric):
    """Every score is what the network says of that pair alone."""
    definition, network = make_definition(), make_network()
    features = random_features(definition.video_ids)
    path = score_benchmark(
        network, definition, Features(features), tmp_path / "s.parquet", settings=ScoringSettings(symmetric=symmetric)
    )
    wanted = pairwise_scores(network, definition, features, symmetric=symmetric)
    np.testing.assert_allclose(as_matrix(path, definition), wanted, atol=1e-5)


def test_score_benchmark_continues_to_the_same_bytes(tmp_path):
    """A run that was stopped and started again gives the file of a run that was not."""
    definition, network = make_definition(), make_network()
    features, settings = random_features(definition.video_ids), ScoringSettings(references_per_part=3)
    whole = score_benchmark(network, definition, Features(features), tmp_path / "whole.parquet", settings=settings)
    reader, stopped = Features(features), tmp_path / "stopped.parquet"
    reader.fail_after = 7
    with pytest.raises(KeyboardInterrupt):
        score_benchmark(network, definition, reader, stopped, settings=settings)
    assert not stopped.exists()
    assert len(list((tmp_path / "stopped.parquet.parts").glob("part-*"))) == 2
    reader.fail_after = None
    score_benchmark(network, definition, reader, stopped, settings=settings)
    assert stopped.read_bytes() == whole.read_bytes()
    assert not (tmp_path / "stopped.parquet.parts").exists()


def test_score_benchmark_refuses_features_of_another_model(tmp_path):
    """Features of another dimension are named, with what was wanted."""
    definition, network = make_definition(), make_network()
    features = random_features(definition.video_ids, dims=DIMS * 2)
    with pytest.raises(DataError, match=r"features of q0: shape .*32.*wanted.*16"):
        score_benchmark(network, definition, Features(features), tmp_path / "s.parquet")


def test_score_benchmark_refuses_a_store_without_queries(tmp_path):
    """A feature store without any query is an error that counts what is there."""
    definition, network = make_definition(), make_network()
    features = random_features(definition.database)
    with pytest.raises(DataError, match="0 of 3 queries and 11 of 11 references"):
        score_benchmark(network, definition, Features(features), tmp_path / "s.parquet")
