"""Labelled pairs of the generated demo corpus: its test split to train on, its validation split to
validate."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hapvr.benchmark.definition import BenchmarkDefinition, load_definition
from hapvr.benchmark.protocol import evaluate
from hapvr.data.features import STAGE
from hapvr.demo.corpus import make_demo_corpus
from hapvr.model.family import VideoNetwork
from hapvr.steps.benchmark_features import BenchmarkFeatures, score_stored
from hapvr.steps.project import Project
from hapvr.train.pair_labels import NAME_COLUMNS, TIME_COLUMNS
from tests.conftest import write_settings
from tests.made_data import make_feature_data

NUM_INCIDENTS = 8
SPLITS = {"train": "train", "test": "train", "validation": "validation"}
"""Of the corpus, and what each is here: copies are labelled in the last two alone."""
PACKAGED = {"architecture": "tf_efficientnet_lite0", "weights": {"source": "packaged"}}


def make_pairs_project(folder: Path) -> None:
    """Generate the corpus, compute its features, and write its labelled pairs."""
    make_demo_corpus(folder / "corpus", name="demo", num_incidents=NUM_INCIDENTS)
    make_feature_data(open_pairs_project(folder, config=folder / "config.yaml"))
    definition = load_definition(str(folder / "corpus" / "demo-test"))
    assert definition.segments is not None
    with (folder / "labelled_pairs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*NAME_COLUMNS, *TIME_COLUMNS))
        columns = ("query_id", "reference_id", *TIME_COLUMNS)
        writer.writerows(definition.segments.select(columns).iter_rows())


def open_pairs_project(folder: Path, *, config: Path, **changes: Any) -> Project:
    """The project of the generated pairs, with these settings of `train`.

    config: the file that they are written to
    """
    sources = [
        {
            "kind": "folder",
            "name": f"demo-{split}",
            "path": str(folder / "corpus" / f"demo-{split}" / "videos"),
            "split": used_as,
        }
        for split, used_as in SPLITS.items()
    ]
    settings = {
        "name": "pairs",
        "data_root": str(folder / "data"),
        "device": "cpu",
        "shard_videos": 64,
        "sources": sources,
        "sampling": {"short_side_px": 146, "timeout_s": 300, "workers": 1},
        "backbone": {**PACKAGED, "crop_px": 128},
        "teacher": PACKAGED,
        "whitening": {"dims": 64, "max_regions": 2000},
        "features": {"pooled": True},
        "views": {"num_frames": 8, "num_weak": 1, "num_strong": 1},
        "train": {"data_workers": 0, **changes},
    }
    return Project.open(write_settings(config, settings), folder=folder)


def validator(project: Project, folder: Path) -> Callable[[VideoNetwork], dict[str, float]]:
    """Scores the validation half with a network: the mean of its metrics, and each of them."""
    definition = load_definition(str(folder / "corpus" / "demo-validation"))
    shards = [key for key in project.root.list_folders(STAGE) if key.startswith("demo-validation")]
    features = BenchmarkFeatures(project.root, tuple(shards), definition)

    def validate(network: VideoNetwork) -> dict[str, float]:
        metrics = dict(evaluate_stored(network, definition, features))
        return {"mean": sum(metrics.values()) / len(metrics), **metrics}

    return validate


def evaluate_stored(
    network: VideoNetwork, definition: BenchmarkDefinition, features: BenchmarkFeatures
) -> dict[str, float]:
    """The metrics of a benchmark by a network."""
    scores = score_stored(network, definition, features, "cpu")
    available = frozenset(features.available())
    return dict(evaluate(definition, scores, policy="strict", available=available).metrics)
