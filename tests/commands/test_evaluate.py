"""`hapvr evaluate`: published numbers from similarities, and scores from stored features and a model."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import torch

from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.features.backbone import load_backbone
from hapvr.features.whitening import Whitening, load_whitening
from hapvr.model.checkpoint import load_network, save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.scorer.torch_bundle import BundleParts, write_bundle
from hapvr.seeding import torch_rng
from hapvr.stages.benchmark_features import BenchmarkFeatures, shards_with_features
from hapvr.stages.project import Project
from hapvr.storage.availability import write_availability
from hapvr.storage.features import FeatureStore
from hapvr.storage.filesystem import DataRoot
from tests.commands.conftest import Call
from tests.conftest import GOLDEN, golden_similarities


@pytest.mark.parametrize(
    ("benchmark", "file", "key"),
    [
        ("fivr-5k", "fivr5k_similarities_dev", "fivr5k_dev"),
        ("fivr-5k", "fivr5k_similarities_dev_missing", "fivr5k_dev_missing"),
        ("evve", "evve_similarities_dev_missing", "evve_dev_missing"),
        ("svd", "svd_labeled_similarities_dev", "svd_labeled_dev"),
    ],
)
def test_evaluate_gives_the_reference_metrics(call: Call, benchmark: str, file: str, key: str, tmp_path: Path) -> None:
    """Every metric of the research release, to 1e-6, under the official policy."""
    wanted = json.loads((GOLDEN / "expected_metrics.json").read_text(encoding="utf-8"))[key]
    path = tmp_path / "similarities.parquet"
    golden_similarities(file).write_parquet(path)
    done = call("evaluate", "--benchmark", benchmark, "--similarities", path, "--policy", "official", "--json")
    assert done.code == 0, done.error
    found = done.json["metrics"]
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-6)


def test_evaluate_names_the_column_that_a_table_lacks(call: Call, tmp_path: Path) -> None:
    """A table of other columns is refused with those that are wanted."""
    path = tmp_path / "similarities.parquet"
    pl.DataFrame({"query": ["a"], "reference_id": ["b"], "similarity": [0.5]}).write_parquet(path)
    done = call("evaluate", "--benchmark", "fivr-5k", "--similarities", path)
    assert done.code == 1
    assert "no column 'query_id'; found ['query', 'reference_id', 'similarity']" in done.error


@pytest.fixture
def own_test(small_project: Project) -> Path:
    """The folder of the small project's test benchmark."""
    return small_project.root.local_path("corpus/own-test")


@pytest.fixture
def network_folder(tmp_path: Path) -> Path:
    """A stored network with seeded random weights that fits the small project's features."""
    network = SimilarityNetwork(NetworkSettings(), dims=32, generator=torch_rng("evaluate"))
    return save_network(network, tmp_path / "network", metadata={})


@pytest.mark.slow
def test_evaluate_from_features_equals_evaluating_its_similarities(
    call: Call, small_project: Project, own_test: Path, network_folder: Path, tmp_path: Path
) -> None:
    """Features and a model give similarities of every pair that has features, and the metrics of that file."""
    out = tmp_path / "kept" / "similarities.parquet"
    arguments = ("--features", small_project.root.url, "--model", network_folder, "--out", out, "--json")
    done = call("evaluate", "--benchmark", own_test, *arguments)
    assert done.code == 0, done.error
    definition = load_definition(own_test)
    scores = pl.read_parquet(out)
    availability = done.json["availability"]
    assert availability["num_queries_scored"] == len(definition.queries) == scores["query_id"].n_unique()
    assert availability["num_references_scored"] == scores["reference_id"].n_unique() > 0
    again = call("evaluate", "--benchmark", own_test, "--similarities", out, "--json")
    assert again.json["metrics"] == done.json["metrics"]
    folder = call(
        "evaluate", "--benchmark", own_test, "--features", f"{small_project.root.url}/features", *arguments[2:]
    )
    assert folder.json == done.json


def test_evaluate_symmetric_scores_differ(
    call: Call, small_project: Project, own_test: Path, network_folder: Path, tmp_path: Path
) -> None:
    """--symmetric reaches the engine."""
    arguments = ("evaluate", "--benchmark", own_test, "--features", small_project.root.url, "--model", network_folder)
    for name, options in (("one way", ()), ("symmetric", ("--symmetric",))):
        assert call(*arguments, *options, "--out", tmp_path / name).code == 0
    first, second = (pl.read_parquet(tmp_path / name)["similarity"] for name in ("one way", "symmetric"))
    assert len(first) == len(second)
    assert (first != second).any()


def test_evaluate_normalizes_against_a_source(
    call: Call, small_project: Project, own_test: Path, network_folder: Path, tmp_path: Path
) -> None:
    """Normalised metrics stand beside the raw ones: each query's scores less its similarity to the nearest other video."""
    out = tmp_path / "similarities.parquet"
    arguments = ("evaluate", "--benchmark", own_test)
    scored = ("--features", small_project.root.url, "--model", network_folder, "--out", out)
    plain = call(*arguments, *scored, "--json")
    done = call(*arguments, *scored, "--normalize", "own-train", "--json")
    assert done.code == 0, done.error
    found = done.json
    normalized = found.pop("normalized")
    assert found == plain.json
    assert normalized["availability"] == found["availability"]
    definition = load_definition(own_test)
    shards = [key for key in small_project.root.list_folders("features") if key.startswith("own-train-")]
    store = FeatureStore(small_project.root, shards)
    own = FeatureStore(small_project.root, shards_with_features(small_project.root, definition))
    network, _ = load_network(network_folder)
    with torch.inference_mode():
        others = [network.embed(features.float())[None] for _, features in store.read(sorted(store.available()))]
        levels = {
            query: max(float(network.compare(network.embed(features.float())[None], other).video) for other in others)
            for query, features in BenchmarkFeatures(own, definition).read(definition.queries)
        }
    level = pl.col("query_id").replace_strict(levels, return_dtype=pl.Float64)
    pl.read_parquet(out).with_columns(pl.col("similarity") - level).write_parquet(tmp_path / "normalized.parquet")
    again = call(*arguments, "--similarities", tmp_path / "normalized.parquet", "--json")
    assert again.json["metrics"] == pytest.approx(normalized["metrics"])
    assert "| own-test (strict), normalised scores |" in call(*arguments, *scored, "--normalize", "own-train").out
    absent = call(*arguments, *scored, "--normalize", "absent")
    assert absent.code == 1
    assert "no shards of a source 'absent'" in absent.error


def test_evaluate_measures_segments(call: Call, small_project: Project, own_test: Path, tmp_path: Path) -> None:
    """Copies whose time is as it was are found from begin to end; the table and the CSV file hold what was measured."""
    network = SimilarityNetwork(NetworkSettings(attention=False, comparator=False), dims=32)
    folder = save_network(network, tmp_path / "network", metadata={})
    arguments = ("evaluate", "--benchmark", own_test, "--features", small_project.root.url, "--model", folder)
    done = call(*arguments, "--matches", tmp_path / "made" / "matches.csv", "--json")
    assert done.code == 0, done.error
    found = done.json["segments"]
    definition = load_definition(own_test)
    assert found["metrics"]["num_true"] == len(definition.segments) > 0
    assert set(found["by_edit"]) == set(definition.videos.filter(pl.col("role") == "database")["edit"]) - {"none"}
    assert found["metrics"]["found_rate"] > 0.5
    assert found["metrics"]["begin_error"] <= 1
    assert 0 < found["metrics"]["micro_ap"] <= 1
    rows = pl.read_csv(tmp_path / "made" / "matches.csv")
    assert rows.columns == ["query_id", "ref_id", "query_start", "query_end", "ref_start", "ref_end", "score"]
    assert len(rows) == found["metrics"]["num_predicted"]
    assert f"| all | {len(definition.segments)} |" in call(*arguments, "--segments").out


def test_evaluate_refuses_features_of_another_whitening(
    call: Call, small_project: Project, own_test: Path, network_folder: Path, tmp_path: Path
) -> None:
    """A bundle scores the features that were made as its own are; any others are named with what differs."""
    backbone = load_backbone(small_project.config.backbone)
    fitting = load_whitening(small_project.root)
    other = Whitening(fitting.mean + 1, fitting.eigenvectors, fitting.eigenvalues, fitting.eps)
    arguments = ("evaluate", "--benchmark", own_test, "--features", small_project.root.url, "--model")
    for name, whitening in (("fits", fitting), ("other", other)):
        write_bundle(
            tmp_path / name,
            BundleParts(
                network_folder=network_folder,
                backbone=backbone,
                whitening=whitening,
                sampling=small_project.config.sampling,
            ),
        )
    assert call(*arguments, tmp_path / "fits").code == 0
    refused = call(*arguments, tmp_path / "other")
    assert refused.code == 1
    assert "does not go with these features: settings whitening: wanted" in refused.error


def test_evaluate_refuses_a_model_of_other_dimensions(
    call: Call, small_project: Project, own_test: Path, tmp_path: Path
) -> None:
    """Exit 1, with the shape that was found and the one that was wanted."""
    save_network(
        SimilarityNetwork(NetworkSettings(), dims=16, generator=torch.Generator()), tmp_path / "network", metadata={}
    )
    done = call(
        "evaluate", "--benchmark", own_test, "--features", small_project.root.url, "--model", tmp_path / "network"
    )
    assert done.code == 1
    assert "wanted [frames, regions, 16]" in done.error


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "wanted --similarities FILE, or both --features DIR and --model MODEL"),
        (("--features", "data"), 2, "both --features DIR and --model MODEL"),
        (("--similarities", "s.parquet", "--segments"), 2, "--segments: wanted with --features DIR and --model MODEL"),
        (("--similarities", "s.parquet", "--model", "m"), 2, "both --features DIR and --model MODEL"),
        (("--similarities", "s.parquet", "--policy", "kind"), 2, "'kind' is not one of"),
        (("--similarities", "absent.parquet"), 1, "absent.parquet"),
        (("--features", "absent", "--model", "absent.pth"), 1, "absent.pth is no model"),
        (("--similarities", "absent.parquet", "--benchmark-files", "absent"), 1, "annotation.json"),
    ],
)
def test_evaluate_says_what_is_wrong_with_a_call(
    call: Call, arguments: tuple[str, ...], code: int, message: str
) -> None:
    """Exit 2 for a wrong call, 1 for what is not there; the text names the value and what is wanted."""
    done = call("evaluate", "--benchmark", "fivr-5k", *arguments)
    assert done.code == code, done.error
    assert message in done.error


def test_evaluate_reads_a_benchmark_from_its_authors_files(call: Call, tmp_path: Path) -> None:
    """--benchmark-files stands in for the tables that ship; the papers' rows stand beside the result."""
    labels = {"q": {"ND": ["a"], "DS": [], "CS": ["b"], "IS": ["c"]}}
    (tmp_path / "annotation.json").write_text(json.dumps(labels))
    (tmp_path / "youtube_ids.txt").write_text("a\nb\nc\nd\n")
    scores = {"query_id": ["q"] * 4, "reference_id": ["a", "b", "c", "d"], "similarity": [0.9, 0.2, 0.5, 0.7]}
    pl.DataFrame(scores).write_parquet(tmp_path / "s.parquet")
    arguments = ("--similarities", tmp_path / "s.parquet", "--benchmark-files", tmp_path)
    done = call("evaluate", "--benchmark", "fivr-200k", *arguments, "--json")
    # ranks: a 1, d 2, c 3, b 4
    assert done.json["metrics"]["DSVR"] == 1.0
    assert done.json["metrics"]["CSVR"] == pytest.approx((1 + 2 / 4) / 2)
    assert done.json["metrics"]["ISVR"] == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    text = call("evaluate", "--benchmark", "fivr-200k", *arguments).out
    assert "| HAP-VR | 92.83 | 88.21 | 74.72 |" in text
    assert "| fivr-200k (strict) | 100.00 | 75.00 | 80.56 |" in text
    assert "num_references_scored: 4" in text


def test_evaluate_frozen_wants_its_manifest(call: Call, tmp_path: Path) -> None:
    """`frozen` without --available is a wrong call; a file without video_id is named."""
    definition = load_definition("fivr-5k")
    query, reference = definition.labels.row(0)[:2]
    scores = {"query_id": [query], "reference_id": [reference], "similarity": [0.5]}
    pl.DataFrame(scores).write_parquet(tmp_path / "s.parquet")
    arguments = ("evaluate", "--benchmark", "fivr-5k", "--similarities", tmp_path / "s.parquet", "--policy", "frozen")
    assert call(*arguments).code == 2
    pl.DataFrame({"video_id": [query, reference]}).write_csv(tmp_path / "ids.csv")
    found = call(*arguments, "--available", tmp_path / "ids.csv", "--json").json
    assert (found["policy"], found["availability"]["num_references"]) == ("frozen", 1)
    (tmp_path / "ids.csv").write_text("id\na\n")
    done = call(*arguments, "--available", tmp_path / "ids.csv")
    assert done.code == 1
    assert "ids.csv" in done.error
    assert "wanted Parquet or CSV with a column video_id" in done.error


def test_evaluate_frozen_reads_the_availability_of_a_source(call: Call, tmp_path: Path) -> None:
    """A folder that `hapvr download` wrote counts its videos with status ok, by the benchmark's own ids."""
    definition = load_definition("fivr-5k")
    query = definition.labels.row(0)[0]
    first, second = [video for video in definition.database if video not in definition.queries][:2]
    statuses = {f"fivr-5k/{query}": "ok", f"fivr-5k/{first}": "ok", f"fivr-5k/{second}": "unavailable"}
    write_availability(DataRoot(tmp_path), "fivr-5k", "fivr-5k-00000", statuses)
    scores = {"query_id": [query] * 2, "reference_id": [first, second], "similarity": [0.5, 0.7]}
    pl.DataFrame(scores).write_parquet(tmp_path / "s.parquet")
    arguments = ("evaluate", "--benchmark", "fivr-5k", "--similarities", tmp_path / "s.parquet", "--policy", "frozen")
    found = call(*arguments, "--available", tmp_path / "availability/fivr-5k", "--json").json
    assert found["availability"]["num_queries"] == 1
    assert found["availability"]["num_references"] == 1
