"""Stores against raw files, and a collection of many videos."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hapvr.config import Config
from hapvr.provenance import Provenance
from hapvr.seeding import numpy_rng
from hapvr.stages.manifest import make_manifest
from hapvr.stages.project import Project
from hapvr.stages.sources import snapshot_sources
from hapvr.storage.features import STAGE as FEATURES_STAGE
from hapvr.storage.features import FeatureStore, feature_columns, fields
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.manifest import read_manifest, shard_keys
from hapvr.storage.shards import Shard, index_row
from hapvr.storage.views import VIEWS_STAGE, ViewFile, ViewRow, view_columns, view_fields
from hapvr.video.settings import ListSource

REGIONS, DIMS = 9, 512


def measure_stores(folder: Path, *, num_videos: int, rounds: int) -> dict[str, Any]:
    """Reading all features, and views in random order, against raw reads of the same bytes; all from the page cache.

    raw: through one small buffer, which stays in the processor's cache, as the store's tensors may if each is dropped
    before the next is read; raw_into_memory: as one array, for comparison with the store's tensors if all are kept.
    """
    root = DataRoot(folder)
    rng = numpy_rng(0, "values")
    shard = Shard(root, FEATURES_STAGE, "s-00000")
    with shard.write_data(fields(num_regions=REGIONS, dims=DIMS), row_group_rows=256, compress=False) as writer:
        for number in range(num_videos):
            values = rng.standard_normal((60, REGIONS, DIMS), dtype=np.float32)
            writer.write(feature_columns(str(number), values, list(range(60))))
    shard.write_index(
        [index_row(str(number), 60) for number in range(num_videos)], provenance=Provenance("features", {})
    )
    views = Shard(root, VIEWS_STAGE, "s-00000")
    columns = view_fields("regions", shape=(28, REGIONS, DIMS))
    with views.write_data(columns, row_group_rows=None, compress=False) as writer:
        for number in range(num_videos // 2):
            rows = [ViewRow(str(number), view, "strong", (), "", tuple(range(28))) for view in range(12)]
            writer.write(view_columns(rows, rng.standard_normal((12, 28, REGIONS, DIMS), dtype=np.float32)))
    views.write_index(
        [index_row(str(number), 12) for number in range(num_videos // 2)], provenance=Provenance("training_views", {})
    )
    store, view_file = FeatureStore(root, ["s-00000"]), ViewFile(views)
    ids = [str(number) for number in range(num_videos)]
    order = [view_file.video_ids[index] for index in rng.permutation(num_videos // 2)]
    best = dict.fromkeys(("raw", "raw_into_memory", "store", "store_kept", "views"), float("inf"))
    for _ in range(rounds):
        for name, work in (
            ("raw", lambda: _read_raw(Path(root.path(shard.data_name)))),
            ("raw_into_memory", lambda: np.fromfile(root.path(shard.data_name), np.uint8)),
            ("store", lambda: [features.shape for _, features in store.read(ids)]),
            ("store_kept", lambda: list(store.read(ids))),
            ("views", lambda: [view_file.read(video_id).shape for video_id in order]),
        ):
            start = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - start)
    num_bytes = Path(root.path(shard.data_name)).stat().st_size
    return {
        "bytes": num_bytes,
        "store_gb_per_s": round(num_bytes / best["store"] / 1e9, 2),
        "store_kept_gb_per_s": round(num_bytes / best["store_kept"] / 1e9, 2),
        "raw_gb_per_s": round(num_bytes / best["raw"] / 1e9, 2),
        "raw_into_memory_gb_per_s": round(num_bytes / best["raw_into_memory"] / 1e9, 2),
        "rate_against_raw": round(best["raw"] / best["store"], 3),
        "kept_rate_against_raw_into_memory": round(best["raw_into_memory"] / best["store_kept"], 3),
        "shuffled_clips_per_s": round(12 * len(order) / best["views"]),
        "bytes_per_frame": round(num_bytes / (60 * num_videos)),
    }


def _read_raw(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 22):
            pass


def measure_collection(*, num_videos: int, shard_videos: int = 512) -> dict[str, Any]:
    """Seconds from a list of URLs to shards, for a sensor to look for new ones, and to scan the indexes of all features."""
    seconds = {}
    with tempfile.TemporaryDirectory(prefix="hapvr-collection-") as name:
        folder = Path(name)
        lines = [f"{number:011d},https://example.org/{number:011d}.mp4" for number in range(num_videos)]
        (folder / "list.csv").write_text("video_id,url\n" + "\n".join(lines) + "\n")
        source = ListSource(kind="list", name="many", path=folder / "list.csv")
        config = Config(name="many", data_root=str(folder / "data"), sources=(source,), shard_videos=shard_videos)
        project = Project(config, DataRoot(folder / "data"), folder)

        def timed(step: str, work: Any) -> Any:
            start = time.perf_counter()
            result = work()
            seconds[step] = round(time.perf_counter() - start, 2)
            return result

        timed("manifest", lambda: make_manifest(project))
        timed("manifest_again", lambda: make_manifest(project))
        timed("sensor", lambda: snapshot_sources(project, settle_s=0))
        manifest = timed("scan_manifest", lambda: read_manifest(project.root))
        _write_indexes(project, {key: rows["video_id"].to_list() for (key,), rows in manifest.group_by("shard")})
        keys = shard_keys(project.root)
        found = timed("scan_features", lambda: FeatureStore(project.root, keys).available())
    return {
        "videos": len(found),
        "shards": len(keys),
        "seconds": seconds,
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _write_indexes(project: Project, ids: dict[str, Sequence[str]]) -> None:
    """Feature shards of one small row per video."""
    for key, video_ids in ids.items():
        shard = project.shard(FEATURES_STAGE, key)
        with shard.write_data(fields(num_regions=1, dims=2), row_group_rows=256, compress=False) as writer:
            for video_id in video_ids:
                writer.write(feature_columns(video_id, np.zeros((1, 1, 2)), [0.0]))
        shard.write_index([index_row(video_id, 1) for video_id in video_ids], provenance=Provenance(FEATURES_STAGE, {}))
