"""Calibration of a trained model on the validation benchmark: similarity to probability, and the segments' threshold."""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from matplotlib.figure import Figure

from hapvr.benchmark.definition import BenchmarkDefinition, Task
from hapvr.benchmark.ranking import relevant_and_irrelevant
from hapvr.benchmark.report import BLUE, GREY, ORANGE
from hapvr.model.checkpoint import load_network
from hapvr.model.family import VideoNetwork
from hapvr.networks.extract import choose_device
from hapvr.scorer.calibration import MIN_PAIRS, Calibration, fit_calibration
from hapvr.scorer.segments import FRAME_PAIRS, FRAME_QUANTILE, MAX_FRAME_THRESHOLD, best_run, relative_frame_matrix
from hapvr.seeding import numpy_rng
from hapvr.steps.benchmark_features import BenchmarkFeatures, open_benchmark, score_stored
from hapvr.steps.project import Project
from hapvr.steps.training import TrainingRun


def calibrate(project: Project, run: TrainingRun) -> Calibration | str:
    """Fit on all labelled pairs of the validation benchmark that have features; why not, where there are too few. Test
    benchmarks are never looked at.

    A match is a pair that the benchmark's broadest task counts as relevant: a copy, an edit, or, where labelled, other
    footage of the same scene or incident.
    """
    name = project.config.evaluation.validation
    if name is None:
        return "the configuration names no validation benchmark"
    definition, features = open_benchmark(project, name)
    task = broadest_task(definition)
    network, _ = load_network(run.network_folder)
    device = choose_device(project.config.device)
    scores = score_stored(network, definition, features, device)
    matches, others = relevant_and_irrelevant(definition, scores, task=task.name)
    if min(len(matches), len(others)) < MIN_PAIRS:
        return f"{name} has {len(matches)} matching and {len(others)} other pairs; {MIN_PAIRS} of each are needed"
    return fit_calibration(
        matches,
        others,
        source={
            "benchmark": name,
            "task": task.name,
            "labels": sorted(task.positives),
            "shards": features.digests(),
            "run_key": run.key,
        },
        frame_threshold=_frame_threshold(network.to(device), definition, task, features, scores, device=device),
    )


def broadest_task(definition: BenchmarkDefinition) -> Task:
    """The task with the most kinds of relevant labels, the first of equals."""
    return max(definition.tasks, key=lambda task: len(task.positives))


def reliability_figure(calibration: Calibration) -> Figure:
    """Observed against predicted rate of matches, and how many pairs each point stands for."""
    figure = Figure(figsize=(5, 5.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    predicted = [row.predicted for row in calibration.reliability]
    upper.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="perfect")
    upper.plot(predicted, [row.observed for row in calibration.reliability], "o-", color=BLUE, label="validation pairs")
    upper.set(ylabel="rate of matches", xlim=(0, 1), ylim=(-0.02, 1.02))
    upper.set_title(
        f"{calibration.num_matches:,} matches, {calibration.num_others:,} others; Brier score {calibration.brier:.4f}",
        fontsize=10,
    )
    upper.legend(loc="upper left", fontsize="small")
    upper.grid(alpha=0.3)
    lower.bar(predicted, [row.num_pairs for row in calibration.reliability], width=0.04, color=ORANGE)
    lower.set(xlabel="predicted probability", ylabel="pairs", yscale="log")
    return figure


def _frame_threshold(
    network: VideoNetwork,
    definition: BenchmarkDefinition,
    task: Task,
    features: BenchmarkFeatures,
    scores: pl.DataFrame,
    *,
    device: torch.device,
) -> float:
    """What FRAME_QUANTILE of the irrelevant pairs stay below with their most similar consecutive frames.

    A single frame would not do: unrelated videos share black frames and titles.
    """
    relevant = definition.labels.filter(pl.col("label").is_in(list(task.positives | task.ignored)))
    others = scores.filter(pl.col("query_id") != pl.col("reference_id")).join(
        relevant, on=["query_id", "reference_id"], how="anti"
    )
    others = others.sort("query_id", "reference_id")
    chosen = numpy_rng(0, "frame threshold").permutation(len(others))[:FRAME_PAIRS]
    runs = []
    for pair in others[sorted(chosen.tolist())].select("query_id", "reference_id").iter_rows():
        videos = dict(features.read(pair, extras=network.needs_extras))
        with torch.inference_mode():
            first, second = (network.embed(videos[video].float().to(device)) for video in pair)
            runs.append(best_run(relative_frame_matrix(network, first, second)))
    return min(float(np.quantile(runs, FRAME_QUANTILE)), MAX_FRAME_THRESHOLD)
