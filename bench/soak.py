"""Shards that arrive one by one, with a search of the index after each: do files, memory and times
stay bounded?

    python -m bench.soak [--shards 200] [--videos 20] [--frames 60] [--keep 60]

Features are random, imported as by `hapvr features import`, and indexed by the step `search_index`;
a search looks up the frames of one stored video. `files` and `MB` are those of the index's folder.
--keep: for how many seconds replaced versions stay.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import yaml

from bench.table import parse, show
from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.search import lance_index
from hapvr.search.current import current_index
from hapvr.seeding import numpy_rng
from hapvr.steps.features import import_features
from hapvr.steps.project import Project
from hapvr.steps.search_index import update_index
from hapvr.steps.search_model import search_model

REGIONS = 9
DIMS = 32


def soak(
    folder: Path, *, shards: int, videos: int, frames: int, keep_s: float
) -> Iterator[dict[str, Any]]:
    """A row for each shard that has arrived in a new project in `folder`."""
    lance_index.KEEP_S = keep_s
    config: dict[str, Any] = {"name": "soak", "data_root": str(folder / "data"), "device": "cpu"}
    config |= {"sources": [{"kind": "folder", "name": "none", "path": str(folder)}]}
    config |= {"search": {"index": {"min_indexed_rows": 2000, "refine_factor": 4}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    project = Project.open(folder / "config.yaml", folder=folder)
    process = psutil.Process()
    settings = NetworkSettings(attention=False, comparator=False)
    network = save_network(SimilarityNetwork(settings, dims=DIMS), folder / "network", metadata={})
    model = search_model(project, str(network))
    for number in range(shards):
        rng = numpy_rng(number, "soak")
        file = folder / "features.h5"
        with h5py.File(file, "w") as stored:
            for video in range(videos):
                centre = rng.standard_normal((1, REGIONS, DIMS))
                values = centre + rng.standard_normal((frames, REGIONS, DIMS))
                stored[f"{number:04d}-{video:03d}"] = (
                    values / np.linalg.norm(values, axis=-1, keepdims=True)
                ).astype("f2")

            query = values.mean(axis=1)

        import_features(project.root, file, name=f"s{number:04d}")
        began = time.perf_counter()
        update = update_index(project, model)
        updated = time.perf_counter()
        place = current_index(project.root).place
        index = current_index(project.root).open(project.root, project.config.search)
        nearest = index.search_frames(query, 10)
        searched = time.perf_counter()
        files = [
            path.stat().st_size
            for path in project.root.local_path(place).rglob("*")
            if path.is_file()
        ]
        yield {
            "shards": number + 1,
            "frames": update.status.frames,
            "fragments": update.status.fragments,
            "parts": update.status.parts,
            "files": len(files),
            "MB": sum(files) / 1e6,
            "RSS MB": process.memory_info().rss / 1e6,
            "update s": updated - began,
            "search ms": 1e3 * (searched - updated),
            "itself first": nearest["video_id"][0].as_py() == f"{number:04d}-{videos - 1:03d}",
        }


def main() -> None:
    """Measures and prints a table."""
    options = parse(__doc__, shards=200, videos=20, frames=60, keep=60.0)
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"shards": options.shards, "videos": options.videos, "frames": options.frames}
        rows = list(soak(Path(folder), **sizes, keep_s=options.keep))

    show(rows[:: max(1, options.shards // 10)] + rows[-1:])


if __name__ == "__main__":
    main()
