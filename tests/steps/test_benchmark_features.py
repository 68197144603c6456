"""A benchmark's videos in the store: ingested by one line of configuration, found under the
benchmark's own ids."""

from pathlib import Path

import torch

from hapvr.benchmark.definition import load_definition
from hapvr.data.features import STAGE, fields
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import read_manifest
from hapvr.data.shards import Shard, frame_columns, index_row
from hapvr.provenance import Provenance
from hapvr.steps.benchmark_features import (
    BenchmarkFeatures,
    background_features,
    shards_with_features,
    stored_ids,
)
from hapvr.steps.project import Project
from hapvr.steps.video_manifest import make_manifest
from tests.conftest import small_settings, write_settings


def project_of(tmp_path: Path, source: dict[str, str], **settings: object) -> Project:
    """A project with one source."""
    config = small_settings(tmp_path, tmp_path / "data") | {"sources": [source], **settings}
    return Project.open(write_settings(tmp_path / "config.yaml", config))


def write_shard(root: DataRoot, key: str, video_ids: list[str]) -> None:
    """A finished shard of features [3, 2, 4], constant per video: its position in the list."""
    shard = Shard(root, STAGE, key)
    with shard.write_data(fields(num_regions=2, dims=4)) as write:
        for number, video_id in enumerate(video_ids):
            write(
                frame_columns(
                    video_id,
                    [0.0, 1.0, 2.0],
                    [0, 0, 0],
                    torch.full((3, 2, 4), float(number)).numpy(),
                )
            )

    provenance = Provenance(STAGE, {"made": "by hand"})
    shard.write_index([index_row(video_id, 3) for video_id in video_ids], provenance=provenance)


def test_one_line_ingests_a_benchmark(tmp_path: Path) -> None:
    """Every query and database video of FIVR-5K becomes a row to download, in shards of the usual
    size."""
    source = {"kind": "benchmark", "name": "fivr-5k"}
    result = make_manifest(project_of(tmp_path, source, shard_videos=512))
    definition = load_definition("fivr-5k")
    manifest = read_manifest(DataRoot(tmp_path / "data"))
    assert set(manifest["video_id"]) == {f"fivr-5k/{video}" for video in definition.video_ids}
    assert set(manifest["uri"]) == {f"youtube:{video}" for video in definition.video_ids}
    assert set(manifest["split"]) == {"test"}
    assert len(result.shards) == 10


def test_stored_ids_of_every_way_into_the_store() -> None:
    """Imported, fetched, and read from a folder; the source of the benchmark's name wins over
    others."""
    definition = load_definition("fivr-5k")
    imported, fetched, from_folder, twice = definition.video_ids[:4]
    stored = [
        imported,
        f"fivr-200k/{fetched}",
        f"some-folder/{from_folder}.mp4",
        f"a-source/{twice}",
        f"fivr-5k/{twice}.webm",
        "a-source/something else",
        f"a-source/{definition.video_ids[5]}.txt",
    ]
    assert stored_ids(definition, stored) == {
        imported: imported,
        fetched: f"fivr-200k/{fetched}",
        from_folder: f"some-folder/{from_folder}.mp4",
        twice: f"fivr-5k/{twice}.webm",
    }


def test_benchmark_features_are_read_by_the_benchmarks_ids(tmp_path: Path) -> None:
    """Shards of other videos are left out, and each id gives the features stored for it."""
    root = DataRoot(tmp_path)
    definition = load_definition("fivr-5k")
    first, second = definition.video_ids[:2]
    write_shard(root, "fivr-5k-00000", [f"fivr-5k/{first}", "fivr-5k/unknown", f"fivr-5k/{second}"])
    write_shard(root, "train-00000", ["train/a.mp4"])
    keys = shards_with_features(root, definition)
    assert keys == ["fivr-5k-00000"]
    features = BenchmarkFeatures(root, keys, definition)
    assert features.available() == {first, second}
    stored_values = {
        video: float(values[0, 0, 0]) for video, values in features.read([second, first, "gone"])
    }
    assert stored_values == {first: 0.0, second: 2.0}
    write_shard(root, "train-00001", ["train/b.mp4"])
    others, background = background_features(root, definition, "train")
    assert background == ("train/a.mp4", "train/b.mp4")
    assert others.available() == {first, second, *background}
    assert {video for video, _ in others.read([first, *background])} == {first, *background}
