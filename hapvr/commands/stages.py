"""`hapvr download | sample | extract | train`: the stages without Dagster."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hapvr.commands.terminal import (
    FAILED,
    ConfigOption,
    JsonOption,
    SetOption,
    exit_codes,
    overrides,
    progress_bar,
    say,
    show,
)

if TYPE_CHECKING:
    from hapvr.stages.project import Project
    from hapvr.storage.shard_build import StageResult

RetryOption = Annotated[
    bool, typer.Option("--retry-failed", help="Also try the failed videos of finished shards again, and only them.")
]
ShardOption = Annotated[list[str] | None, typer.Option("--shard", help="Only these shards; default all.")]
Stage = Callable[..., "StageResult"]


@exit_codes
def download(
    config: ConfigOption,
    set_: SetOption = None,
    shard: ShardOption = None,
    retry_failed: RetryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Read the sources into the manifest, fetch what is remote, and look into every file."""
    from hapvr.stages.manifest import make_manifest
    from hapvr.stages.videos import make_videos

    project = _open(config, set_)
    with progress_bar("sources") as progress:
        manifest = make_manifest(project, progress=progress)
    stage = functools.partial(make_videos, retry_failed=retry_failed)
    _run_stage(project, {"videos": stage}, _chosen(manifest.shards, shard), as_json)


@exit_codes
def sample(
    config: ConfigOption,
    set_: SetOption = None,
    shard: ShardOption = None,
    retry_failed: RetryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Decode videos and store their sampled frames."""
    from hapvr.stages.frames import make_frames
    from hapvr.storage.manifest import shard_keys

    project = _open(config, set_)
    stage = functools.partial(make_frames, retry_failed=retry_failed)
    _run_stage(project, {"frames": stage}, _chosen(shard_keys(project.root), shard), as_json)


@exit_codes
def extract(
    config: ConfigOption, set_: SetOption = None, shard: ShardOption = None, as_json: JsonOption = False
) -> None:
    """Whitening, features of all shards, and views and pseudo labels of the training shards."""
    from hapvr.stages.features import make_features
    from hapvr.stages.views import make_views_and_labels
    from hapvr.stages.whitening import make_whitening
    from hapvr.storage.manifest import read_manifest, shard_keys

    project = _open(config, set_)
    keys = _chosen(shard_keys(project.root), shard)
    manifest = read_manifest(project.root)
    training = manifest.filter(manifest["split"] == "train")["shard"].unique().sort().to_list()
    with progress_bar("whitening") as progress:
        make_whitening(project, training, progress=progress)
    rows = _stage_rows(project, {"features": make_features}, keys)
    for key in (key for key in keys if key in training):
        with progress_bar(f"training_views and pseudo_labels {key}") as progress:
            results = make_views_and_labels(project, key, progress=progress)
        rows += [_row(name, key, result) for name, result in results.items()]
    _show_rows(rows, as_json)


@exit_codes
def train(
    config: ConfigOption,
    set_: SetOption = None,
    run: Annotated[str, typer.Option(help="Name of the run; an unfinished one of that name goes on.")] = "",
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Train with so many seeds, and show mean and spread.")
    ] = 1,
    ablation: Annotated[
        str,
        typer.Option(
            metavar="FILE:TABLE", help="Train every row of a table, e.g. configs/ablations.yaml:table3, or TABLE/ROW."
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Train in a process of its own, tracked in MLflow; with --seeds or --ablation several trainings, one by one."""
    from hapvr.stages.training import finish_training, prepare_training, run_training

    key = run or time.strftime("run-%Y%m%d-%H%M%S")
    if seeds != 1 or ablation:
        _compare(config, set_, key, seeds, ablation, as_json)
        return
    project = _open(config, set_)
    training = prepare_training(project, key, tags={})
    run_training(project, training)
    result: dict[str, Any] = finish_training(project, training)
    result |= {"run": training.key, "mlflow_run_id": training.mlflow_run_id, "folder": str(training.folder)}
    show(result, as_json=as_json, text="\n".join(f"{name}: {value}" for name, value in result.items()))


def _compare(config: Path, set_: list[str] | None, key: str, seeds: int, ablation: str, as_json: bool) -> None:
    from hapvr.errors import ArgumentError
    from hapvr.stages.project import Project
    from hapvr.stages.seeds import AS_CONFIGURED, Row, read_rows, seeds_table, train_seeds

    base, rows = overrides(set_), [AS_CONFIGURED]
    if ablation:
        file, colon, table = ablation.rpartition(":")
        if not colon:
            raise ArgumentError(f"--ablation {ablation!r}: wanted FILE:TABLE, e.g. configs/ablations.yaml:table3")
        rows = [  # --set takes precedence
            Row(row.title, {name: value for name, value in row.overrides.items() if name not in base})
            for row in read_rows(Path(file), table)
        ]
    runs = train_seeds(
        lambda more: Project.open(config, overrides={**base, **more}),
        key=key,
        seeds=seeds,
        rows=rows,
        say=functools.partial(say, err=True),
    )
    show({"runs": [asdict(one) for one in runs]}, as_json=as_json, text=seeds_table(runs))
    if any(one.failure for one in runs):
        raise typer.Exit(FAILED)


def _open(config: Path, set_: list[str] | None) -> Project:
    from hapvr.stages.project import Project

    return Project.open(config, overrides=overrides(set_))


def _chosen(keys: tuple[str, ...] | list[str], wanted: list[str] | None) -> list[str]:
    from hapvr.errors import ArgumentError, DataError

    if not keys:
        raise DataError("the manifest has no videos yet; run `hapvr download` with this configuration first")
    unknown = sorted(set(wanted or []) - set(keys))
    if unknown:
        raise ArgumentError(f"--shard {unknown[0]}: there is no such shard; the manifest has {', '.join(keys)}")
    return list(wanted or keys)


def _run_stage(project: Project, stages: dict[str, Stage], keys: list[str], as_json: bool) -> None:
    _show_rows(_stage_rows(project, stages, keys), as_json)


def _stage_rows(project: Project, stages: dict[str, Stage], keys: list[str]) -> list[dict[str, Any]]:
    rows = []
    for name, stage in stages.items():
        for key in keys:
            with progress_bar(f"{name} {key}") as progress:
                rows.append(_row(name, key, stage(project, key, progress=progress)))
    return rows


def _row(name: str, key: str, result: StageResult) -> dict[str, Any]:
    return {
        "stage": name,
        "shard": key,
        "ok": result.num_ok,
        "failed": result.num_failed,
        "rows": result.num_rows,
        "was_finished": not result.done,
    }


def _show_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    lines = [
        f"{row['stage']} {row['shard']}: {row['ok']} videos, {row['failed']} failed, {row['rows']} rows"
        + (" (was finished)" if row["was_finished"] else "")
        for row in rows
    ]
    show({"shards": rows}, as_json=as_json, text="\n".join(lines))
