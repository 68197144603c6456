"""The ablations of HAP-VR on a project's cached views: every row trained for some steps with several seeds, and evaluated.

    python -m bench.ablation [--config configs/demo.yaml] [--data-root DIR] [--tables table2 table3 table4 similarity]
        [--seeds 0 1 2] [--steps 50] [--batch-videos 8] [--jobs 2] [--validate-every 10] [--out data/ablation.json]

Needs what `make demo` leaves: features, views and pseudo labels. A row is a file `configs/ablations/<table>/*.yaml`, of
which only the settings of training are taken; everything else is the project's. Rows of equal settings are trained once.
`own loss` is the row's own objective on the first five batches, before and after training, in the same network;
`untrained` has the row's pooling on frozen features and learns nothing. Every finished run is kept in the JSON file, and a
run that is there is not done again, so the grid can be made in pieces. With --validate-every a run also validates, and a
second table has the weights that were best there: a setting is to be chosen by its column `validation`, never by the test
tasks beside it. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from bench.ablation_run import Row, Setup, data_digest, read_rows, run_key, run_row
from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.errors import HapvrError
from hapvr.stages.project import Project
from hapvr.stages.training import training_shards
from hapvr.storage.shards import Shard
from hapvr.storage.views import VIEWS_STAGE

ROWS_FOLDER = Path(__file__).resolve().parent.parent / "configs" / "ablations"
TITLES = {
    "presets": "S2VS and HAP-VR",
    "start": "S2VS and HAP-VR, their comparator starting as the identity",
    "table2": "HAP-VR Table 2: ranking losses at video level, with the base loss",
    "table3": "HAP-VR Table 3: terms of the objective",
    "table4": "HAP-VR Table 4: similarity measures",
    "similarity": "Scoring of S2VS, DnS and ViSiL, and parts left out",
    "sensitivity": "One constant moved",
}


def table_markdown(table: str, rows: Mapping[str, Sequence[Mapping[str, Any]]], *, weights: str = "trained") -> str:
    """A table with a line per row; rows: title -> runs of its seeds. Values are percentages, mean ± standard deviation.

    weights: "trained", those of the last step, with the row's own loss; "best", those chosen by validation, with that.
    """
    finished = [run for runs in rows.values() for run in runs if run["status"] == "ok"]
    tasks = [name for name in finished[0]["trained"] if name != "mean"] if finished else []
    describe = _of_loss if weights == "trained" else _of_validation
    header = ["row", *tasks, "mean", "untrained", "gain", *describe([])]
    title = TITLES.get(table, table) + ("" if weights == "trained" else ", best by validation")
    lines = [f"### {title}", "", _line(header), _line(["---"] * len(header))]
    for name, runs in rows.items():
        good = [run for run in runs if run["status"] == "ok"]
        if not good:
            lines.append(_line([name, *["not finite"] * (len(header) - 1)]))
            continue
        values = [_percent([run[weights][task] for run in good]) for task in (*tasks, "mean")]
        values.append(_percent([run["untrained"]["mean"] for run in good[:1]]))
        values.append(_percent([run[weights]["mean"] - run["untrained"]["mean"] for run in good]))
        lines.append(_line([name, *values, *describe(runs).values()]))
    return "\n".join(lines) + "\n"


def _of_loss(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Column -> value: the row's own loss before and after, and how many of its runs lowered it."""
    good = [run for run in runs if run["status"] == "ok"]
    first, last = (statistics.fmean([run[name] for run in good] or [0.0]) for name in ("first_loss", "last_loss"))
    lowered = sum(run["last_loss"] < run["first_loss"] for run in good)
    return {"own loss": f"{first:.3f} → {last:.3f}", "lowered": f"{lowered} of {len(runs)}"}


def _of_validation(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Column -> value: steps of the best weights, and mean validation of these, of the last, and of the untrained."""
    good = [run for run in runs if run["status"] == "ok"]
    columns = {"validation": "best", "last": "trained", "untrained there": "untrained"}
    steps = ", ".join(str(run["best_step"] + 1) for run in good)
    return {"steps": steps} | {
        name: _percent([run["validation"][kind] for run in good] or [0.0]) for name, kind in columns.items()
    }


def machine() -> dict[str, str]:
    """Processor and libraries."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": str(os.cpu_count()),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def main(arguments: Sequence[str]) -> int:
    """0: all runs are finite; 1: some are not, or something is missing; 2: the call was wrong."""
    options = _parse(arguments)
    setup = Setup(
        options.config,
        options.data_root,
        options.benchmark,
        options.steps,
        options.batch_videos,
        options.validate_every,
    )
    try:
        rows = [row for table in options.tables for row in read_rows(options.rows, table)]
        return _run(setup, rows, options)
    except HapvrError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _run(setup: Setup, rows: Sequence[Row], options: argparse.Namespace) -> int:
    start = time.monotonic()
    project = setup.project(rows[0], seed=options.seeds[0])
    definition = setup.benchmark_of(project)
    data = data_digest(project, definition)
    keys = {
        (row.table, row.title, seed): run_key(setup.project(row, seed=seed), data)
        for row in rows
        for seed in options.seeds
    }
    out: Path = options.out
    kept: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    runs = kept.setdefault("runs", {})
    wanted = {
        keys[row.table, row.title, seed]: (row, seed)
        for seed in options.seeds
        for row in rows
        if _is_wanted(runs.get(keys[row.table, row.title, seed]), validate=setup.validate_every > 0)
    }
    for number, (key, run) in enumerate(_finished(setup, wanted, jobs=options.jobs), start=1):
        row, seed = wanted[key]
        runs[key] = {"settings": row.overrides, "seed": seed, **run}
        kept["machine"], kept["setup"] = machine(), _describe(setup, project, definition)
        _write(out, kept)
        sys.stderr.write(f"{number}/{len(wanted)}: {row.table} {row.title}, seed {seed}: {run['seconds']:.0f} s\n")
    seconds = time.monotonic() - start
    chosen = {key: runs[key] for key in keys.values()}
    sys.stdout.write(_head(setup, project, definition, chosen, options, seconds, new=len(wanted)))
    for table in options.tables:
        by_row = {
            row.title: [runs[keys[table, row.title, seed]] for seed in options.seeds]
            for row in rows
            if row.table == table
        }
        for weights in ("trained", "best") if setup.validate_every else ("trained",):
            sys.stdout.write("\n" + table_markdown(table, by_row, weights=weights))
    return 0 if all(run["status"] == "ok" for run in chosen.values()) else 1


def _is_wanted(run: Mapping[str, Any] | None, *, validate: bool) -> bool:
    return run is None or (validate and run["status"] == "ok" and "best" not in run)


def _finished(
    setup: Setup, wanted: Mapping[str, tuple[Row, int]], *, jobs: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and outcome of each run, as they end; several at a time in processes of their own."""
    if jobs == 1:
        for key, (row, seed) in wanted.items():
            yield key, run_row(setup, row, seed)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run_row, setup, row, seed): key for key, (row, seed) in wanted.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _describe(setup: Setup, project: Project, definition: BenchmarkDefinition) -> dict[str, Any]:
    views = Shard(project.root, VIEWS_STAGE, training_shards(project)[0]).require({}).settings
    return {
        "config": setup.config.name,
        "benchmark": definition.name,
        "num_queries": len(definition.queries),
        "num_references": len(definition.database),
        "steps": setup.steps,
        "batch_videos": setup.batch_videos,
        "clip_frames": project.config.views.num_frames,
        "learning_rate": project.config.train.optimizer.learning_rate,
        "backbone_weights": views["features"]["backbone"]["source"],
    }


def _head(
    setup: Setup,
    project: Project,
    definition: BenchmarkDefinition,
    runs: Mapping[str, Mapping[str, Any]],
    options: argparse.Namespace,
    seconds: float,
    *,
    new: int,
) -> str:
    facts = {**machine(), **_describe(setup, project, definition)}
    facts |= {
        "training videos": next((run["num_videos"] for run in runs.values() if run["status"] == "ok"), "unknown"),
        "seeds": " ".join(map(str, options.seeds)),
        "runs": f"{len(runs)}, of them {new} now, {options.jobs} at a time, in {seconds:.0f} s",
        "time of all runs": f"{sum(run['seconds'] for run in runs.values()):.0f} s",
    }
    return "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in facts.items()) + "\n"


def _percent(values: Sequence[float]) -> str:
    mean = f"{100 * statistics.fmean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {100 * statistics.stdev(values):.1f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data, indent=1), encoding="utf-8")
    part.replace(path)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--data-root", help="default: the configuration's")
    parser.add_argument("--benchmark", help="default: the first of evaluation.benchmarks")
    parser.add_argument("--rows", type=Path, default=ROWS_FOLDER, help="folder of the tables' folders")
    parser.add_argument("--tables", nargs="+", default=["table2", "table3", "table4", "similarity"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-videos", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--validate-every", type=int, default=0, help="steps; also scores the weights best in validation"
    )
    parser.add_argument("--out", type=Path, default=Path("data/ablation.json"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
