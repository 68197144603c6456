"""A collection with a video that is forgotten, and what is looked at: traces of it, and answers."""

import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import polars as pl
import pyarrow.parquet as pq

from hapvr.care.forget import forget, plan_forgetting
from hapvr.chain import CHAIN
from hapvr.chain.step import shards_of
from hapvr.cli import main
from hapvr.data import manifest
from hapvr.data.filesystem import MADE_FOLDER, NOTE_SUFFIX, DataRoot
from hapvr.search.current import current_index
from hapvr.search.descriptors import descriptor_shard
from hapvr.search.marks import mark
from hapvr.steps.duplicate_pairs import duplicate_pairs
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.training import tracker_of
from hapvr.steps.watch_queries import make_watch_list
from hapvr.tables import write_table
from hapvr.video.kept_workers import end_idle_workers
from tests.forked import forking
from tests.made_data import make_feature_data
from tests.scorer.bundles import write_scenes
from tests.steps.data_projects import folder_settings, open_project
from tests.steps.search_projects import (
    DIMS,
    LONG,
    bundle_of,
    register_bundle,
    with_real_weights,
    write_collection,
)

MARKER = "marker-QXZ7"
VIDEO = f"in/{MARKER}.mp4"
RUN = "run-1"
STAGES = {"manifest", "videos", "frames", "features", "training_views", "pseudo_labels", "search"}
STAGES |= {
    ".made",
    "duplicate_pairs",
    "duplicate_groups",
    "watch_matches",
    "watch",
    "marks",
    "models",
    "mlflow",
}


def make_forgettable(folder: Path) -> None:
    """A collection whose every stage, index, table, training and store has something of VIDEO."""
    videos = write_collection(folder / "videos")
    write_scenes(videos / f"{MARKER}.mp4", [*LONG[2:], 600, 601])
    write_scenes(folder / "queries" / "leak.mp4", [500, *LONG[8:18], 501])
    settings = folder_settings(videos, folder / "data")
    settings |= {"whitening": {"dims": DIMS, "max_regions": 2000}, "shard_videos": 4}
    lists = [{"name": "leaked", "path": str(folder / "queries"), "min_probability": 0.5}]
    settings["watch"] = {"lists": lists, "webhook": {"url": "http://127.0.0.1:9/nobody"}}
    project = open_project(folder, settings)
    make_feature_data(project)
    register_bundle(project, with_real_weights(bundle_of(project, folder)))
    for name in (
        "training_views",
        "pseudo_labels",
        "frame_descriptors",
        "search_index",
        "duplicate_pairs",
    ):
        run(project, name)

    mark(project.root, VIDEO, "in/long.mp4", "match")
    mark(project.root, "in/short.mp4", "in/other 1.mp4", "not_a_match")
    for name in ("duplicate_groups", "watch_matches"):
        run(project, name)
    searcher = Searcher.open(project)
    file = videos / f"{MARKER}.mp4"
    digest = searcher.read(file).sha256
    make_watch_list(project, file, name=file.name, sha256=digest, max_bytes=10**6)
    with file.open(
        "ab"
    ) as edited:  # as by an edit of its tags: the list knows the digest that it had
        edited.write(b"\0\0\0\x10freehapvr-1.")

    for name in ("videos", "frames"):
        run(project, name)
    add_training(project)


def run(project: Project, name: str) -> None:
    """Make a step of all its shards."""
    for key in shards_of(project, CHAIN[name]):
        CHAIN[name].run(project, key)


def add_training(project: Project) -> None:
    """Tables as a training and its evaluation write them, in its folder and among the artifacts of
    an MLflow run."""
    folder = project.root.local_path(f"models/{RUN}")
    scores = folder / "benchmarks" / "own-test"
    scores.mkdir(parents=True)
    rows = [(VIDEO, "in/long.mp4", 0.8), ("in/long.mp4", "in/short.mp4", 0.1)]
    table = pl.DataFrame(rows, ["query_id", "reference_id", "similarity"], orient="row")
    write_table(table.to_arrow(), scores / "similarities-trained.parquet")
    tracker = tracker_of(project)
    run_id = tracker.start(RUN, name=RUN, params={}, tags={})
    tracker.client.log_artifact(
        run_id, str(scores / "similarities-trained.parquet"), "benchmarks/own-test"
    )
    tracker.client.delete_run(run_id)


def traces(folder: Path, needles: list[bytes]) -> set[str]:
    """Files below a folder with one of these bytes in them, in what they unpack to, or in their
    name."""
    paths = set()
    for path in folder.rglob("*"):
        texts = [path.as_posix().encode()]
        if path.is_file():
            texts.append(path.read_bytes())
        if path.suffix == ".parquet":
            table = pq.read_table(path, partitioning=None)
            texts += [repr(table.schema.metadata).encode(), repr(table.to_pylist()).encode()]

        if path.suffix == ".lance" and path.is_dir():
            texts.append(
                repr(lance.dataset(str(path)).to_table(columns=["video_id"]).to_pylist()).encode()
            )

        if any(needle in text for needle in needles for text in texts):
            paths.add(path.relative_to(folder).as_posix())

    return paths


def shard_of(project: Project) -> str:
    """The shard of VIDEO."""
    rows = manifest.manifest_table(project.root).to_pylist()
    (key,) = {row["shard"] for row in rows if row["video_id"] == VIDEO}
    return str(key)


def traits(project: Project) -> list[bytes]:
    """Name and digest of VIDEO, a part of a picture, and a vector, as descriptors and as the index
    store it."""
    metadata = Searcher.open(project).collection.metadata.of(VIDEO)
    key = shard_of(project)
    jpeg = open_frames(project, key).read(VIDEO).jpegs[-1]
    shard = descriptor_shard(project.root, current_index(project.root).digest, key)
    place = sum(shard.read().places()[VIDEO]) - 1
    vector = shard.open_data().read(["vector"])["vector"][place].as_py()
    wide = np.frombuffer(vector, np.float16).astype(np.float32).tobytes()
    middle = len(jpeg) * 3 // 4
    (row,) = [row for row in project.shard("videos", key).rows() if row["video_id"] == VIDEO]
    digests = [metadata.sha256.encode(), row["former_sha256"].encode()]
    return [MARKER.encode(), *digests, jpeg[middle : middle + 64], vector, wide]


def answers(project: Project) -> dict[str, object]:
    """What a search for each other video finds, and all pairs, without VIDEO; how likely that is
    follows from all candidates. Which videos the network compares together changes the last digits
    of similarities."""
    searcher = Searcher.open(project)
    results: dict[str, object] = {}
    for video_id in sorted({*searcher.collection.video_ids()} - {VIDEO}):
        matches = searcher.search_id(video_id).matches
        results[video_id] = [
            asdict(one)
            | {
                "rank": 0,
                "probability": None,
                "verdict": None,
                "similarity": round(one.similarity, 5),
            }
            for one in matches
            if one.reference != VIDEO
        ]

    pairs = duplicate_pairs(project, searcher, min_probability=0.5)
    results["pairs"] = [
        replace(one, probability=0.0) for one in pairs if VIDEO not in (one.first, one.second)
    ]
    return results


def call(project: Project, *arguments: str, kill_at: int = 0) -> None:
    """`hapvr forget` in a process of its own, which kills itself at its `kill_at`-th write."""
    words = ["hapvr", "forget", *arguments, "--config", str(project.folder / "config.yaml")]
    process = forking().Process(target=run_main, args=(words, kill_at))
    process.start()
    process.join()
    assert process.exitcode == (-signal.SIGKILL if kill_at else 0)


def run_main(words: list[str], kill_at: int) -> None:
    """The program of these words, in its process; 0 never kills it."""
    sys.argv = words
    write = DataRoot.write
    left = kill_at

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(*given, **named)

    DataRoot.write = counted  # type: ignore[method-assign]
    try:
        main()
    finally:
        end_idle_workers()  # which a process of `multiprocessing` would wait for, a minute long


def call_planned_before(project: Project, video_id: str) -> None:
    """Forget a video in a process of its own, which made its plan before another call was
    killed."""
    process = forking().Process(target=forget_late, args=(project.folder / "config.yaml", video_id))
    process.start()
    process.join()
    assert process.exitcode == 0


def forget_late(config: Path, video_id: str) -> None:
    """What `call_planned_before` does, in its process: what a killed call has left is put aside
    while the plan is made."""
    project = Project.open(config)
    note = f"{MADE_FOLDER}/{manifest.FORGETTING}{NOTE_SUFFIX}"
    left = [project.root.local_path(name) for name in (manifest.FORGETTING, note)]
    aside = [path.rename(path.with_suffix(".aside")) for path in left]
    planned = plan_forgetting(project, [video_id])
    for path, whole in zip(left, aside, strict=True):
        whole.rename(path)

    forget(project, planned)
    end_idle_workers()
