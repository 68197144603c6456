"""The scoring engine against the network, one pair at a time."""

import numpy as np
import polars as pl
import pytest
import torch

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.scoring import normalize_similarities, score_benchmark
from hapvr.benchmark.tasks import Task
from hapvr.errors import DataError
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng

DIMS = 16
REGIONS = 9


class Features:
    """Features in memory, read in the order they were given."""

    def __init__(self, features):
        self.features = features

    def available(self):
        return set(self.features)

    def read(self, video_ids, *, extras=False):
        yield from (
            (video, features)
            for video, features in self.features.items()
            if video in set(video_ids)
        )


def random_features(names, *, dims=DIMS, lengths=(5, 9, 4, 30, 1, 12)):
    rng = torch_rng(0, "features")
    features = {}
    for index, name in enumerate(names):
        regions = torch.randn(lengths[index % len(lengths)], REGIONS, dims, generator=rng)
        features[name] = torch.nn.functional.normalize(regions, dim=-1)

    return features


def make_network(**options):
    return SimilarityNetwork(
        NetworkSettings(**options), dims=DIMS, generator=torch_rng(1, "network")
    ).eval()


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr("hapvr.benchmark.scoring.REFERENCES_PER_PART", 3)


def make_definition(num_queries=3, num_references=11):
    queries = tuple(f"q{i}" for i in range(num_queries))
    database = tuple(f"r{i}" for i in range(num_references))
    labels = pl.DataFrame({"query_id": ["q0"], "reference_id": ["r0"], "label": ["ND"]})
    tasks = (Task(name="mAP", metric="mAP", positives=frozenset({"ND"})),)
    return BenchmarkDefinition(
        name="small", queries=queries, database=database, labels=labels, tasks=tasks
    )


def pairwise_scores(network, definition, features):
    rows = []
    with torch.inference_mode():
        for query in definition.queries:
            for reference in definition.database:
                q = network.embed(features[query])[None]
                r = network.embed(features[reference])[None]
                rows.append(float(network.compare(q, r).video))

    return np.array(rows).reshape(len(definition.queries), -1)


def as_matrix(path, definition):
    table = pl.read_parquet(path).with_columns(pl.col("query_id", "reference_id").cast(pl.String))
    return np.array(
        [
            [
                table.filter((pl.col("query_id") == q) & (pl.col("reference_id") == r))[
                    "similarity"
                ].item()
                for r in definition.database
            ]
            for q in definition.queries
        ]
    )


def test_score_benchmark_equals_one_pair_at_a_time(tmp_path):
    """Every score is what the network says of that pair alone; the caller's network is not
    changed."""
    definition = make_definition()
    network = make_network().train()
    features = random_features(definition.video_ids)
    path = score_benchmark(network, definition, Features(features), tmp_path / "s.parquet")
    assert network.training
    wanted = pairwise_scores(network.eval(), definition, features)
    np.testing.assert_allclose(as_matrix(path, definition), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda features: random_features(features, dims=DIMS * 2),
            r"features of q0, .*32.*expected.*16",
        ),
        (
            lambda features: features | {"r3": features["r3"] * float("nan")},
            "features of r3, .*expected finite",
        ),
        (
            lambda features: features | {"q1": 3 * features["q1"]},
            "features of q1 are not unit vectors",
        ),
        (lambda features: {"r0": features["r0"]}, "0 of 3 queries and 1 of 11 references"),
    ],
)
def test_score_benchmark_refuses_features_that_cannot_be_scored(tmp_path, change, message):
    """Features of another model, damaged ones, and a store without any query are errors and never
    rows."""
    definition = make_definition()
    features = change(random_features(definition.video_ids))
    with pytest.raises(DataError, match=message):
        score_benchmark(make_network(), definition, Features(features), tmp_path / "s.parquet")


def test_score_benchmark_leaves_out_videos_without_features(tmp_path):
    """Videos without features have no rows; the evaluation counts them."""
    definition = make_definition()
    network = make_network()
    features = random_features(
        [video for video in definition.video_ids if video not in ("q1", "r4")]
    )
    table = pl.read_parquet(
        score_benchmark(network, definition, Features(features), tmp_path / "s.parquet")
    )
    assert sorted(table["query_id"].unique()) == ["q0", "q2"]
    assert table.height == 2 * 10
    assert "r4" not in table["reference_id"]


def table(rows):
    return pl.DataFrame(rows, schema=["query_id", "reference_id", "similarity"], orient="row")


@pytest.mark.parametrize(("top_k", "level"), [(1, 0.6), (2, 0.5), (3, 0.4)])
def test_similarity_normalisation_takes_off_the_mean_of_the_nearest(top_k, level):
    """S2VS 5.1: the k largest similarities to the background are averaged, each query by itself."""
    of_a = [("a", "x", 0.4), ("a", "y", 0.6), ("a", "z", 0.2)]
    of_b = [("b", name, 0.0) for name in "xyz"]
    background = table([*of_a, *of_b])
    scores = table([("a", "r", 0.9), ("b", "r", 0.3), ("a", "s", 0.1)])
    normalized = normalize_similarities(scores, background, top_k=top_k)
    assert normalized["query_id"].to_list() == ["a", "b", "a"]
    assert normalized["similarity"].to_list() == pytest.approx([0.9 - level, 0.3, 0.1 - level])


def test_similarity_normalisation_needs_as_many_neighbours():
    """A query with fewer comparable videos would be normalised by another rule."""
    background = table([("a", "x", 0.4), ("a", "y", float("nan"))])
    with pytest.raises(
        DataError, match="query 'a' has 1 similarities to the background, and the 2"
    ):
        normalize_similarities(table([("a", "r", 0.9)]), background, top_k=2)

    with pytest.raises(DataError, match="query 'b' has 0"):
        normalize_similarities(table([("b", "r", 0.9)]), background, top_k=1)
