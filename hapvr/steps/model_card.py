"""The model card of a version: data, weights, metrics with intervals, calibration, limits; Markdown. And what became
of the videos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from hapvr.data.manifest import collection_keys, read_manifest, shard_keys
from hapvr.data.shards import STATUS_OK
from hapvr.networks.packaged import packaged_origin
from hapvr.registry.versions import LINEAGE_FILE, data_digest
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.evidence import EvidenceModel
from hapvr.steps.baseline import searches_text
from hapvr.steps.evaluation import BASELINE, TRAINED
from hapvr.steps.project import Project
from hapvr.steps.training import TrainingRun
from hapvr.tables import markdown_table
from hapvr.train.run_folder import read_record


def model_card(
    project: Project,
    run: TrainingRun,
    *,
    scores: Mapping[str, Mapping[str, Any]],
    calibration: Calibration | str,
    evidence: EvidenceModel | str,
    tags: Mapping[str, str],
    onnx: Mapping[str, Any],
    warning: str,
) -> str:
    """The card of the run's model, in Markdown. scores: benchmark -> what scores.json says; calibration, evidence: of pairs and
    of searches, or why there is none; tags: of the registration; onnx: see `write_bundle`; warning: its first line, "" for
    none."""
    record, name = read_record(run.folder), project.config.tracking.registered_model
    networks = record["weights"]
    made_by = ", ".join(f"{library} {number}" for library, number in record["environment"].items())
    manifest = read_manifest(project.root).select("video_id", "source", "split")
    usable = (pl.col("status") == STATUS_OK).sum().alias("usable")
    videos = video_status(project, generated=True).join(manifest, on="video_id", how="left")
    counts = videos.group_by("source", "split").agg(pl.len().alias("videos"), usable).sort("source")
    weights = [
        (part, one["architecture"], one["source"], one.get("precision", "float32"), one["sha256"][:12])
        for part, one in networks.items()
    ]
    metrics = [
        (
            *(benchmark, task, details["metric"]),
            *(_percent(data["results"][row], task) for row in (BASELINE, TRAINED)),
            f"{details['num_queries']} / {details['num_relevant']}",
        )
        for benchmark, data in scores.items()
        for task, details in data["results"][TRAINED]["tasks"].items()
    ]
    without_torch = f"The model needs torch, since it has no ONNX files: {onnx.get('reason')}."
    if "files" in onnx:
        difference = f"{onnx['check']['largest_difference']:.1g}"
        without_torch = f"Similarities without torch, by ONNX files, differed from torch's by {difference} at most."
    parts = [
        warning and f"**Warning: {warning}.**",
        f"# Model card: {name}, training run {run.key}",
        "Similarity of two videos in [-1, 1] from their pictures alone: copies, edits and, where the labels below cover it, "
        "other footage of the same scene or incident. Trained without labels (HAP-VR, Liu et al., ACM MM 2024).",
        f"## Data\n\n{markdown_table(counts.columns, counts.rows())}",
        f"Trained on {len(record['shards'])} shards of the training split, whose digests are in {LINEAGE_FILE} of the MLflow "
        f"run; all together have {data_digest(record['data_digests'])}.",
        "## Weights",
        markdown_table(("network", "architecture", "weights", "precision", "SHA-256"), weights),
        *sorted({packaged_origin(one["architecture"]) for one in networks.values() if one["source"] == "packaged"}),
        f"## Metrics\n\nIn percent, with 95 % bootstrap intervals over queries; policy {project.config.evaluation.policy}.",
        markdown_table(("benchmark", "task", "metric", BASELINE, "this model", "queries / relevant pairs"), metrics),
        "## Calibration",
        *_calibration(calibration),
        f"## Searches\n\n{searches_text(evidence)}",
        f"## Limits\n\n- Measured on {', '.join(scores) or 'no benchmark'} only; nothing is known of other kinds of video. Generated "
        "videos are less varied than real ones, and benchmarks of one's own videos hold edits made by this package alone.\n"
        "- Sound is not used. Pictures are centre-cropped.\n"
        f"- Segments run forward in both videos and are exact to one sampled frame.\n- {without_torch}",
        f"## Use\n\n`hapvr score a.mp4 b.mp4 --model models:/{name}@champion --segments`, or as docs/serving.md says. "
        "HAPVR_ALLOWED_ROOTS names the folders that a server may read (unset: all), HAPVR_ALLOWED_HOSTS the hosts it may fetch "
        "from (unset: none).",
        f"## Origin\n\nMLflow run {run.mlflow_run_id}, which has all settings; trained with {made_by}. "
        + "; ".join(f"{tag}: {value}" for tag, value in sorted(tags.items())),
    ]
    return "\n\n".join(filter(None, parts)).rstrip() + "\n"


def _percent(result: Mapping[str, Any], task: str) -> str:
    interval = result["intervals"].get(task)
    spread = f" [{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]" if interval else ""
    return f"{100 * result['metrics'][task]:.2f}{spread}"


def _calibration(fitted: Calibration | str) -> list[str]:
    """Paragraphs and a table, or why there is no calibration."""
    if isinstance(fitted, str):
        return [f"None: {fitted}. The column `probability` is empty."]
    rows = [
        (
            *(f"{one.precision:g}", "not reached" if one.similarity is None else f"{one.similarity:.4f}"),
            *(f"{one.found:.3f}", f"{one.recall:.3f}", f"{one.num_matches} / {one.num_pairs}"),
        )
        for one in fitted.thresholds
    ]
    return [
        f"Fitted on the pairs of {fitted.source['benchmark']}: {fitted.num_matches} matches (labels "
        f"{', '.join(fitted.source['labels'])}) and {fitted.num_others} others. P(match) = 1 / (1 + exp(-({fitted.slope:.4g} x "
        f"similarity {fitted.intercept:+.4g}))); Brier score {fitted.brier:.4f} on these same pairs.",
        f"Probabilities and thresholds hold where {100 * fitted.prior:.1f} % of the pairs that are asked about match, as there. "
        "Where matches are rarer both are too optimistic; `--prior` corrects for it.",
        markdown_table(("wanted precision", "similarity from", "precision", "recall", "matches / pairs"), rows),
    ]


def video_status(project: Project, *, generated: bool = False) -> pl.DataFrame:
    """video_id, status, reason, message of every video of the collection, as its frames (or files) ended.

    generated: also of those that were made of them for benchmarks.
    """
    tables, keys = [], shard_keys(project.root)
    for key in keys if generated else collection_keys(project.root, keys):
        found = project.shard("frames", key).find() or project.shard("videos", key).read()
        tables.append(found.frame().select("video_id", "status", "reason", "message"))
    return pl.concat(tables)
