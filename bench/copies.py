"""How often a held-out original is closest to its own edited copies: what `hapvr score` answers, for every query.

    python bench/copies.py [--config configs/demo.yaml] [--benchmark demo-test]

Reads the similarities that `benchmark_scores` stored for the current model. An original counts as found if an edited copy of
it (ND or DS) scores higher than every clip that is not one, footage of the same incident by other cameras included.
"""

import argparse
import json
import sys
from pathlib import Path

import polars as pl

from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.stages.project import Project
from hapvr.stages.sources import benchmark_folder
from hapvr.stages.training import current_run

COPIES = ("ND", "DS")


def found_rates(labels: pl.DataFrame, similarities: pl.DataFrame) -> dict[str, float]:
    """Part of the originals whose best copy beats every other clip, and every clip of other incidents; and of single copies."""
    kinds = labels.group_by("query_id", "reference_id").agg(
        pl.col("label").is_in(COPIES).any().alias("copy"), pl.lit(True).alias("related")
    )
    pairs = similarities.filter(pl.col("query_id") != pl.col("reference_id")).join(
        kinds, on=["query_id", "reference_id"], how="left"
    )
    pairs = pairs.with_columns(pl.col("copy", "related").fill_null(False))
    best = pairs.group_by("query_id").agg(
        pl.col("similarity").filter("copy").max().alias("copy"),
        pl.col("similarity").filter(~pl.col("copy")).max().alias("other"),
        pl.col("similarity").filter(~pl.col("related")).max().alias("unrelated"),
    )
    single = pairs.filter("copy").join(best.select("query_id", "other"), on="query_id")
    return {
        "originals": len(best),
        "best_copy_above_every_other_clip": float((best["copy"] > best["other"]).mean() or 0),
        "best_copy_above_every_unrelated_clip": float((best["copy"] > best["unrelated"]).mean() or 0),
        "single_copies_above_every_other_clip": float((single["similarity"] > single["other"]).mean() or 0),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--benchmark", default="demo-test")
    arguments = parser.parse_args()
    project = Project.open(arguments.config)
    definition = load_definition(str(benchmark_folder(project, arguments.benchmark) or arguments.benchmark))
    folder = current_run(project).folder / "benchmarks" / arguments.benchmark
    rates = {
        name: found_rates(definition.labels, pl.read_parquet(folder / f"similarities-{name}.parquet"))
        for name in ("untrained", "trained")
    }
    sys.stdout.write(json.dumps(rates, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
