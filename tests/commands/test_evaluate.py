"""`hapvr evaluate`: published numbers from similarities, and scores from stored features and a
model."""

import json
from pathlib import Path
from statistics import fmean

import polars as pl
import pytest
import torch

from hapvr.benchmark.definition import load_definition
from hapvr.data.features import FeatureStore
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import write_manifest_shard
from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng
from hapvr.steps.benchmark_features import BenchmarkFeatures, shards_with_features
from hapvr.steps.project import Project
from tests.commands.conftest import Call
from tests.conftest import GOLDEN, golden_similarities


def test_evaluate_gives_the_reference_metrics(call: Call, tmp_path: Path) -> None:
    """Every metric of the research release, to 1e-6, under the official policy."""
    wanted = json.loads((GOLDEN / "expected_metrics.json").read_text(encoding="utf-8"))[
        "fivr5k_dev_missing"
    ]
    path = tmp_path / "similarities.parquet"
    golden_similarities("fivr5k_similarities_dev_missing").write_parquet(path)
    done = call(
        "evaluate",
        "--benchmark",
        "fivr-5k",
        "--similarities",
        path,
        "--policy",
        "official",
        "--json",
    )
    assert done.code == 0, done.error
    assert {name: done.json["metrics"][name] for name in wanted} == pytest.approx(wanted, abs=1e-6)
    write_manifest_shard(DataRoot(tmp_path / "data"), "a", [])
    given = (
        "--features",
        tmp_path / "data",
        "--model",
        "x",
        "--out",
        tmp_path / "data/manifest/a/rows.parquet",
    )
    assert (
        "rows.parquet is in the data root"
        in call("evaluate", "--benchmark", "fivr-5k", *given).error
    )


@pytest.mark.slow
def test_evaluate_normalizes_against_a_source(
    call: Call, small_project: Project, tmp_path: Path
) -> None:
    """Normalised metrics stand beside the raw ones: each query's scores less the mean similarity
    of its two nearest other videos."""
    own_test = small_project.root.local_path("corpus/own-test")
    out = tmp_path / "similarities.parquet"
    network = SimilarityNetwork(NetworkSettings(), dims=32, generator=torch_rng("evaluate"))
    model = save_network(network, tmp_path / "network", metadata={})
    benchmark = ("evaluate", "--benchmark", own_test)
    scored = (
        *benchmark,
        "--features",
        small_project.root.url,
        "--model",
        model,
        "--normalize",
        "own-train",
        "--top-k",
        2,
    )
    assert call(*scored, "--out", tmp_path / "clip.mp4").code == 2
    done = call(*scored, "--out", out, "--json")
    assert done.code == 0, done.error
    normalized = done.json["normalized"]
    assert normalized["availability"] == done.json["availability"]
    definition = load_definition(own_test)
    shards = [
        key for key in small_project.root.list_folders("features") if key.startswith("own-train-")
    ]
    store = FeatureStore(small_project.root, shards)
    keys = shards_with_features(small_project.root, definition)
    network.eval()
    with torch.inference_mode():
        others = [
            network.embed(features.float())[None]
            for _, features in store.read(sorted(store.available()))
        ]
        levels = {
            query: fmean(
                sorted(
                    float(network.compare(network.embed(features.float())[None], other).video)
                    for other in others
                )[-2:]
            )
            for query, features in BenchmarkFeatures(small_project.root, keys, definition).read(
                definition.queries
            )
        }

    level = pl.col("query_id").replace_strict(levels, return_dtype=pl.Float64)
    pl.read_parquet(out).with_columns(pl.col("similarity") - level).write_parquet(
        tmp_path / "normalized.parquet"
    )
    text = call(*scored, "--bootstrap", 20).out
    assert "| own-test (strict), normalised by the 2 nearest |" in text
    assert "95 % interval over queries" in text
    again = call(*benchmark, "--similarities", tmp_path / "normalized.parquet", "--json")
    assert again.json["metrics"] == pytest.approx(normalized["metrics"])


def test_a_benchmark_of_authors_files_is_evaluated_by_its_folder(
    call: Call, tmp_path: Path
) -> None:
    """`benchmarks import` writes the folder; the pool's size that is not the paper's stands beside
    the numbers."""
    (tmp_path / "vcdb" / "annotation").mkdir(parents=True)
    line = "a.mp4,b.mp4,00:00:01,00:00:10,00:01:05,00:01:14\n"
    (tmp_path / "vcdb" / "annotation" / "event.txt").write_text(line)
    (tmp_path / "distractors.txt").write_text("c\n")
    given = (tmp_path / "vcdb", "--out", tmp_path / "made", "--distractors")
    done = call("benchmarks", "import", "vcdb", *given, tmp_path / "distractors.txt", "--json")
    assert done.code == 0, done.error
    assert done.json["queries"] == 2
    assert done.json["database"] == 3
    scores = pl.DataFrame(
        [("a", "b", 0.9), ("a", "c", 0.1), ("b", "a", 0.2), ("b", "c", 0.4)],
        schema=["query_id", "reference_id", "similarity"],
        orient="row",
    )
    scores.write_parquet(tmp_path / "scores.parquet")
    evaluated = ("evaluate", "--benchmark", tmp_path / "made", "--similarities")
    done = call(*evaluated, tmp_path / "scores.parquet", "--json")
    assert done.json["metrics"]["VCDB_mAP"] == pytest.approx(0.75)
    text = call(*evaluated, tmp_path / "scores.parquet").out
    assert "\n| S2VS (DnS-100K) | 87.90 | 73.00 |\n" in text  # a row of the table is a line
    assert "| vcdb-distractors (strict) * | 75.00 |" in text
    assert "vcdb-distractors (strict) *: 2 core videos, the papers have 528: not their pool" in text
    assert "1 distractors, the papers have 100,000: not their pool" in text
    refused = call("benchmarks", "import", "svd", *given, tmp_path / "distractors.txt")
    assert refused.code == 2
