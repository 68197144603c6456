"""The state of a project in a few lines for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl

from hapvr.data.manifest import shard_keys
from hapvr.data.shards import STATUS_OK
from hapvr.provenance import environment
from hapvr.registry.versions import CHAMPION, champion_of, headline
from hapvr.steps.project import Project
from hapvr.steps.training import current_run, tracker_of

RANDOM_WEIGHTS = (
    "WARNING: the published weights could not be had, and this demo goes on with seeded random ones: it shows that the "
    "chain works, and its scores say nothing about videos"
)


@dataclass(frozen=True)
class Summary:
    """videos: every video of the manifest with its last status and reason; lines: the text."""

    videos: pl.DataFrame
    lines: tuple[str, ...]


def video_status(project: Project) -> pl.DataFrame:
    """video_id, shard, status, reason, message of every video of the manifest, as its frames (or files) ended."""
    tables = []
    for key in shard_keys(project.root):
        shard = project.shard("frames", key)
        found = shard.finished_index()
        index = project.shard("videos", key).index() if found is None else found[1]
        tables.append(index.select("video_id", pl.lit(key).alias("shard"), "status", "reason", "message"))
    return pl.concat(tables)


def summarize(project: Project) -> Summary:
    """Videos by status, the weights used, the registered versions, and where everything lies."""
    videos = video_status(project)
    failed = videos.filter(pl.col("status") != STATUS_OK)
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(Counter(failed["reason"]).items()))
    sources = sorted(Counter(videos["shard"].str.replace(r"-\d{5}$", "")).items())
    run, tracker = current_run(project), tracker_of(project)
    tags = tracker.client.get_run(run.mlflow_run_id).data.tags
    weights = {part: tags[f"{part}.weights"] for part in ("backbone", "teacher") if f"{part}.weights" in tags}
    name = project.config.tracking.registered_model
    versions = tracker.client.search_model_versions(f"name = '{name}' and run_id = '{run.mlflow_run_id}'")
    champion = champion_of(tracker.client, name)
    lines = [
        f"videos: {len(videos)}, ok {len(videos) - len(failed)}, failed {len(failed)}"
        + (f" ({reasons})" if reasons else ""),
        *(f"  {row['video_id']}: {row['reason']}: {row['message']}" for row in failed.head(20).iter_rows(named=True)),
        "by source: " + ", ".join(f"{source} {count}" for source, count in sources),
        ", ".join(f"{part} weights: {source}" for part, source in weights.items()),
        *([RANDOM_WEIGHTS] if "random" in weights.values() else []),
        *(f"registered: {name} version {version.version}: {headline(version.description)}" for version in versions),
        f"champion: models:/{name}@{CHAMPION} is version {champion.version}"
        if champion
        else f"champion: none; `hapvr models promote VERSION` makes one of {name}",
        f"data: {project.root.url}; model: {run.folder}",
        f"MLflow run {run.mlflow_run_id} in {tracker.uri}; `make ui` shows it and the Dagster graph",
        "versions: " + ", ".join(f"{library} {number}" for library, number in environment().items()),
    ]
    return Summary(videos, tuple(lines))
