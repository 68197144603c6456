"""The scoring engine against the network, one pair at a time."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from hapvr.benchmark.definition import BenchmarkDefinition, Task
from hapvr.benchmark.protocol import evaluate
from hapvr.benchmark.scoring import ScoringSettings, score_benchmark
from hapvr.errors import ArgumentError, DataError
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng

DIMS, REGIONS = 16, 9


class Features:
    """Features in memory, read in the order they were given; `fail_after` stops a read as a killed run would."""

    def __init__(self, features, fail_after=None):
        self.features, self.fail_after, self.digest = features, fail_after, "0"

    def available(self):
        return set(self.features)

    def digests(self):
        return {"memory": self.digest}

    def read(self, video_ids, *, side=False):
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
    return SimilarityNetwork(NetworkSettings(**options), dims=DIMS, generator=torch_rng(1, "network")).eval()


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


def test_damaged_scores_are_scored_again(tmp_path):
    """A cut part, the first or a later one, and a cut file at the end of it do not stop the call that goes on."""
    definition, network = make_definition(), make_network()
    features, settings = random_features(definition.video_ids), ScoringSettings(references_per_part=3)
    whole = score_benchmark(network, definition, Features(features), tmp_path / "whole.parquet", settings=settings)
    wanted = as_matrix(whole, definition)
    for damaged in (0, 1):
        reader, stopped = Features(features), tmp_path / f"stopped {damaged}.parquet"
        reader.fail_after = 7
        with pytest.raises(KeyboardInterrupt):
            score_benchmark(network, definition, reader, stopped, settings=settings)
        part = sorted(stopped.with_name(stopped.name + ".parts").glob("part-*"))[damaged]
        part.write_bytes(part.read_bytes()[:100])
        reader.fail_after = None
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            score_benchmark(network, definition, reader, stopped, settings=settings)
        assert damaged == 0 or any(f"{part} is damaged" in str(one.message) for one in said)
        np.testing.assert_array_equal(as_matrix(stopped, definition), wanted)
    whole.write_bytes(whole.read_bytes()[:100])
    score_benchmark(network, definition, Features(features), whole, settings=settings)
    np.testing.assert_array_equal(as_matrix(whole, definition), wanted)


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


CHILD = """
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("scoring_test", sys.argv[1])
test = importlib.util.module_from_spec(spec)
spec.loader.exec_module(test)
test.score_slowly(Path(sys.argv[2]), delay_s=float(sys.argv[3]))
"""


MEMORY_CHILD = """
import importlib.util, resource, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("scoring_test", sys.argv[1])
test = importlib.util.module_from_spec(spec)
spec.loader.exec_module(test)
test.score_made_on_reading(Path(sys.argv[2]), num_references=int(sys.argv[3]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def score_made_on_reading(path, *, num_references):
    """Scores videos of 60 frames whose features exist only while they are read."""
    definition = make_definition(num_references=num_references)
    reader = Features(dict.fromkeys(definition.video_ids))

    def read(video_ids, *, side=False):
        for video in video_ids:
            yield video, torch.randn(60, REGIONS, 256, generator=torch_rng(video)).half()

    reader.read = read
    network = SimilarityNetwork(NetworkSettings(comparator=False), dims=256, generator=torch_rng("memory"))
    score_benchmark(network, definition, reader, path, settings=ScoringSettings(references_per_part=64))


def score_slowly(path, *, delay_s):
    """Scores the small benchmark, one reference per part, waiting before each read."""
    definition = make_definition()
    features = Features(random_features(definition.video_ids))
    read = features.read

    def slow_read(video_ids, *, side=False):
        for item in read(video_ids):
            time.sleep(delay_s)
            yield item

    features.read = slow_read
    score_benchmark(make_network(), definition, features, path, settings=ScoringSettings(references_per_part=1))


def test_score_benchmark_survives_being_killed(tmp_path):
    """After kill -9 between two parts, the next run leaves the bytes of an uninterrupted one."""
    score_slowly(tmp_path / "whole.parquet", delay_s=0)
    killed = tmp_path / "killed.parquet"
    parts = tmp_path / "killed.parquet.parts"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", CHILD, __file__, str(killed), "0.2"], env=environment) as child:
        deadline = time.monotonic() + 120
        while len(list(parts.glob("part-*"))) < 3 and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert not killed.exists()
    assert 3 <= len(list(parts.glob("part-*"))) < 11
    score_slowly(killed, delay_s=0)
    assert killed.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_score_benchmark_starts_over_with_other_weights(tmp_path):
    """Parts of another network are not mixed in, and a finished file of another network is made again."""
    definition = make_definition()
    reader = Features(random_features(definition.video_ids))
    path, settings = tmp_path / "s.parquet", ScoringSettings(references_per_part=3)
    reader.fail_after = 7
    with pytest.raises(KeyboardInterrupt):
        score_benchmark(make_network(), definition, reader, path, settings=settings)
    reader.fail_after = None
    other = make_network(temporal_rate=0.5)
    score_benchmark(other, definition, reader, path, settings=settings)
    wanted = pairwise_scores(other, definition, reader.features)
    np.testing.assert_allclose(as_matrix(path, definition), wanted, atol=1e-5)
    score_benchmark(make_network(), definition, reader, path, settings=settings)
    wanted = pairwise_scores(make_network(), definition, reader.features)
    np.testing.assert_allclose(as_matrix(path, definition), wanted, atol=1e-5)


def test_score_benchmark_keeps_a_finished_file(tmp_path):
    """The same run again reads no feature; other features do."""
    definition, network = make_definition(), make_network()
    reader = Features(random_features(definition.video_ids))
    path = score_benchmark(network, definition, reader, tmp_path / "s.parquet")
    reader.fail_after = 0
    assert score_benchmark(network, definition, reader, path) == path
    reader.digest = "1"
    with pytest.raises(KeyboardInterrupt):
        score_benchmark(network, definition, reader, path)


def test_score_benchmark_leaves_out_videos_without_features(tmp_path):
    """Videos without features have no rows; the evaluation counts them."""
    definition, network = make_definition(), make_network()
    features = random_features([video for video in definition.video_ids if video not in ("q1", "r4")])
    table = pl.read_parquet(score_benchmark(network, definition, Features(features), tmp_path / "s.parquet"))
    assert sorted(table["query_id"].unique()) == ["q0", "q2"]
    assert table.height == 2 * 10
    assert "r4" not in table["reference_id"]


def test_score_benchmark_refuses_features_that_are_not_finite(tmp_path):
    """A video with NaN features is named."""
    definition, network = make_definition(), make_network()
    features = random_features(definition.video_ids)
    features["r3"] = features["r3"] * float("nan")
    with pytest.raises(DataError, match="features of r3: some values are not finite"):
        score_benchmark(network, definition, Features(features), tmp_path / "s.parquet")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_score_benchmark_leaves_the_network_alone(tmp_path, dtype):
    """The caller's network keeps mode, dtype and weights, whatever the settings."""
    definition, network = make_definition(), make_network().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    reader = Features(random_features(definition.video_ids))
    score_benchmark(network, definition, reader, tmp_path / "s.parquet", settings=ScoringSettings(dtype=dtype))
    assert network.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("faster", ["float32", "bfloat16"])
def test_auto_scores_in_the_faster_dtype(tmp_path, monkeypatch, faster):
    """Bytes are those of the dtype that took less time on the first video; the other is slowed here."""
    definition, network = make_definition(), make_network()
    reader = Features(random_features(definition.video_ids))
    make_scorer = type(network).packed_scorer

    def slowed(self, *, dtype, limits):
        score = make_scorer(self, dtype=dtype, limits=limits)

        def score_late(*arguments):
            if dtype is not getattr(torch, faster):
                time.sleep(0.2)
            return score(*arguments)

        return score_late

    monkeypatch.setattr(type(network), "packed_scorer", slowed)
    found = score_benchmark(network, definition, reader, tmp_path / "auto", settings=ScoringSettings(dtype="auto"))
    wanted = score_benchmark(network, definition, reader, tmp_path / faster, settings=ScoringSettings(dtype=faster))
    assert pl.read_parquet(found).equals(pl.read_parquet(wanted))


def test_bfloat16_keeps_the_metrics(tmp_path):
    """On noisy copies that are hard to find, mAP from bfloat16 products is within 0.001 of float32's."""
    rng = torch_rng(5, "copies")
    definition = make_definition(num_queries=30, num_references=60)
    network = make_network(attention=False, comparator=False)
    features = random_features(definition.video_ids)
    for number, query in enumerate(definition.queries):
        copied = features[f"r{number}"] + 0.6 * torch.randn(features[f"r{number}"].shape, generator=rng)
        features[query] = torch.nn.functional.normalize(copied, dim=-1)
    labels = pl.DataFrame(
        [(query, f"r{number}", "ND") for number, query in enumerate(definition.queries)],
        schema=definition.labels.schema,
        orient="row",
    )
    definition = dataclasses.replace(definition, labels=labels)
    values = []
    for dtype in ("float32", "bfloat16"):
        path = tmp_path / f"{dtype}.parquet"
        score_benchmark(network, definition, Features(features), path, settings=ScoringSettings(dtype=dtype))
        values.append(evaluate(definition, path).metrics["mAP"])
    assert 0.3 < values[0] < 0.98
    assert values[1] == pytest.approx(values[0], abs=1e-3)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_references(tmp_path):
    """Peak memory of a process that scores four times as many references is the same within a tenth."""
    peaks = []
    for num_references in (200, 800):
        command = [sys.executable, "-c", MEMORY_CHILD, __file__, str(tmp_path / f"{num_references}.parquet")]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        output = subprocess.run(
            [*command, str(num_references)], env=environment, check=True, capture_output=True, text=True
        ).stdout
        peaks.append(int(output.split()[-1]))
    assert peaks[1] < 1.1 * peaks[0]


def test_scoring_settings_refuse_wrong_values():
    """Unknown dtypes and empty parts are named with what is allowed."""
    with pytest.raises(ArgumentError, match="dtype is 'float16'; wanted one of auto, float32, bfloat16"):
        ScoringSettings(dtype="float16")
    with pytest.raises(ArgumentError, match="references_per_part is 0"):
        ScoringSettings(references_per_part=0)
