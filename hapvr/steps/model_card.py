"""The model card of a version: data, weights, metrics with intervals, calibration, limits; Markdown. And a summary of a
project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from hapvr.data.manifest import collection_keys, read_manifest, shard_keys
from hapvr.data.shards import STATUS_OK
from hapvr.networks.weights import packaged_origin
from hapvr.registry.versions import CHAMPION, LINEAGE_FILE, champion_of, data_digest, decision_of
from hapvr.scorer.calibration import CalibrationCheck, CheckedThreshold, PrecisionThreshold
from hapvr.scorer.description import random_weights_warning
from hapvr.scorer.evidence import EvidenceModel
from hapvr.steps.calibration import FRAME_QUANTILE, ModelCalibration
from hapvr.steps.evaluation import BASELINE, TRAINED
from hapvr.steps.project import Project
from hapvr.steps.training import CURRENT_NAME, NOT_TRAINED, TrainingRun, current_run, tracker_of
from hapvr.tables import markdown_table
from hapvr.train.run_folder import read_record

DIGEST_CHARACTERS = 12
DOES = {"backbone": "features by", "teacher": "pseudo labels by"}


def model_card(
    project: Project,
    run: TrainingRun,
    *,
    scores: Mapping[str, Mapping[str, Any]],
    calibrated: ModelCalibration,
    checks: Sequence[CalibrationCheck],
    evidence: EvidenceModel | str,
    tags: Mapping[str, str],
    onnx: Mapping[str, Any],
    warning: str,
) -> str:
    """The card of the run's model, in Markdown. scores: benchmark -> what scores.json says; checks: of the calibration on
    benchmarks; evidence: of searches, or why there is none; tags: of the registration; onnx: see `write_bundle`; warning: its
    first line, "" for none."""
    record, name = read_record(run.folder), project.config.tracking.registered_model
    made_by = ", ".join(f"{library} {number}" for library, number in record["environment"].items())
    parts = [
        *([f"**Warning: {warning}.**"] if warning else []),
        f"# Model card: {name}, training run {run.key}",
        "Similarity of two videos in [-1, 1] from their pictures alone: copies, edits and, where the labels below cover it, "
        "other footage of the same scene or incident. Trained without labels (HAP-VR, Liu et al., ACM MM 2024).",
        "## Data",
        _data(project, record),
        "## Weights",
        _weights(record),
        "## Metrics",
        _metrics(scores),
        "## Calibration",
        _calibration(calibrated, checks),
        "## Searches",
        searches_text(evidence),
        "## Limits",
        "\n".join(f"- {line}" for line in _limits(project, scores, calibrated, onnx) if line),
        "## Use",
        f"`hapvr score a.mp4 b.mp4 --model models:/{name}@champion --segments`, or as docs/serving.md says. "
        "HAPVR_ALLOWED_ROOTS names the folders that a server may read (unset: all), HAPVR_ALLOWED_HOSTS the hosts it may fetch "
        "from (unset: none).",
        "## Origin",
        f"MLflow run {run.mlflow_run_id}, which has all settings; trained with {made_by}. "
        + "; ".join(f"{tag}: {value}" for tag, value in sorted(tags.items())),
    ]
    return "\n\n".join(parts).rstrip() + "\n"


def _calibration(calibrated: ModelCalibration, checks: Sequence[CalibrationCheck]) -> str:
    """Paragraphs and tables, or why there is no calibration. checks: on benchmarks, may be empty."""
    fitted = calibrated.calibration
    if fitted is None:
        return f"None: {calibrated.reason}. The column `probability` is empty."
    source, prior = fitted.source, f"{100 * fitted.prior:.1f} %"
    marks = source.get("marks", {})
    marked = f", with {marks['matches']} and {marks['others']} that people marked" if marks.get("used") else ""

    def line(name: str, wanted: float, row: PrecisionThreshold | CheckedThreshold, precision: str) -> tuple[str, ...]:
        similarity = "not reached" if row.similarity is None else f"{row.similarity:.4f}"
        return name, f"{wanted:g}", similarity, precision, f"{row.recall:.3f}", f"{row.num_matches} / {row.num_pairs}"

    rows = [
        line(source["benchmark"], row.precision, row, f"{row.found:.3f} (at least {row.lower:.3f})")
        for row in fitted.thresholds
    ]
    rows += [
        line(check.name, row.wanted, row, "no pair" if row.precision is None else f"{row.precision:.3f}")
        for check in checks
        for row in check.thresholds
    ]
    briers = [
        f"{check.name} {check.brier:.4f} ({check.num_matches} matches, {check.num_others} others)" for check in checks
    ]
    held_out = f"; on pairs that it was not fitted on, weighted so that {prior} match there too: {'; '.join(briers)}"
    return "\n\n".join(
        [
            f"Fitted on the pairs of {source['benchmark']}: {fitted.num_matches} matches (labels {', '.join(source['labels'])}) "
            f"and {fitted.num_others} others{marked}. P(match) = 1 / (1 + exp(-({fitted.slope:.4g} x similarity "
            f"{fitted.intercept:+.4g}))); Brier score {fitted.brier:.4f} on these same pairs{held_out if checks else ''}.",
            f"Probabilities and thresholds hold where {prior} of the pairs that are asked about match, as there. Where matches "
            "are rarer both are too optimistic; `--prior` corrects for it.",
            markdown_table(
                ("benchmark", "wanted precision", "similarity from", "precision", "recall", "matches / pairs"), rows
            ),
        ]
    )


def searches_text(evidence: EvidenceModel | str) -> str:
    """A paragraph: how answers of searches are ordered and what their probabilities rest on, or why there are none."""
    if isinstance(evidence, str):
        return f"Ranked by similarity alone, without probabilities: {evidence}."
    weights = ", ".join(f"{name} {weight:.3g}" for name, weight in evidence.weights.items() if weight)
    return (
        f"Answers are ordered by the probability of a match, fitted on searches for {evidence.num_groups} videos of "
        f"{evidence.source['benchmark']}: {evidence.num_matches} matches and {evidence.num_others} others among their "
        f"candidates; Brier score {evidence.brier:.4f} on searches that were not fitted. Log-odds are {evidence.intercept:.3g} plus "
        f"{weights}, times what was found. They hold where {100 * evidence.prior:.1f} % of the candidates match."
    )


def _data(project: Project, record: Mapping[str, Any]) -> str:
    manifest = read_manifest(project.root).select("video_id", "source", "split")
    videos = video_status(project, generated=True).join(manifest, on="video_id", how="left")
    usable = (pl.col("status") == STATUS_OK).sum().alias("usable")
    counts = videos.group_by("source", "split").agg(pl.len().alias("videos"), usable).sort("source")
    return (
        f"{markdown_table(counts.columns, counts.rows())}\n\nTrained on {len(record['shards'])} shards of the training split, "
        f"whose digests are in {LINEAGE_FILE} of the MLflow run; all together have {data_digest(record['data_digests'])}."
    )


def _weights(record: Mapping[str, Any]) -> str:
    rows = [
        (part, one["architecture"], one["source"], one.get("precision", "float32"), one["sha256"][:DIGEST_CHARACTERS])
        for part, one in record["weights"].items()
    ]
    packaged = sorted({one["architecture"] for one in record["weights"].values() if one["source"] == "packaged"})
    table = markdown_table(("network", "architecture", "weights", "precision", "SHA-256"), rows)
    return "\n\n".join([table, *map(packaged_origin, packaged)])


def _metrics(scores: Mapping[str, Mapping[str, Any]]) -> str:
    if not scores:
        return "None: the configuration names no benchmark."
    rows = []
    for name, data in scores.items():
        trained, baseline = (data["results"][row] for row in (TRAINED, BASELINE))
        for task, details in trained["tasks"].items():
            pairs = f"{details['num_queries']} / {details['num_relevant']}"
            rows.append((name, task, details["metric"], _percent(baseline, task), _percent(trained, task), pairs))
    head = ("benchmark", "task", "metric", BASELINE, "this model", "queries / relevant pairs")
    policies = sorted({data["results"][TRAINED]["policy"] for data in scores.values()})
    return (
        f"In percent, with 95 % bootstrap intervals over queries; missing videos under the {' and '.join(policies)} policy.\n\n"
        + markdown_table(head, rows)
    )


def _percent(result: Mapping[str, Any], task: str) -> str:
    interval = result["intervals"].get(task)
    spread = f" [{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]" if interval else ""
    return f"{100 * result['metrics'][task]:.2f}{spread}"


def _limits(
    project: Project,
    scores: Mapping[str, Any],
    calibrated: ModelCalibration,
    onnx: Mapping[str, Any],
) -> list[str]:
    kinds = {source.kind for source in project.config.sources}
    fitted = calibrated.calibration
    if fitted is None or fitted.frame_threshold is None:
        segments = "Segments use a frame threshold that was not fitted on data."
    else:
        segments = (
            f"Segments need consecutive frames whose similarity is above {fitted.frame_threshold:.3f} of a frame with itself, "
            f"which {100 * FRAME_QUANTILE:.0f} % of the irrelevant validation pairs have not; they run forward in both videos "
            "and are exact to one sampled frame."
        )
    if "files" in onnx:
        without_torch = (
            "Similarities of the ONNX files, which installations without torch use, differed from torch's by "
            f"{onnx['check']['largest_difference']:.1g} at most."
        )
    else:
        without_torch = (
            f"`hapvr score` needs the full installation for this model, which has no ONNX files: {onnx['reason']}."
        )
    return [
        f"Measured on {', '.join(scores) or 'no benchmark'} only; nothing is known of other kinds of video.",
        "A part of the videos is a generated corpus; real videos are more varied." if "demo_corpus" in kinds else "",
        "Benchmarks of one's own videos hold edited copies made by this package, so other footage of the same incident and "
        "edits of other kinds are not tested."
        if "own_videos" in kinds
        else "",
        "Sound is not used. Pictures are centre-cropped.",
        segments,
        without_torch,
    ]


def summarize(project: Project) -> list[str]:
    """Lines for people: videos by status, the weights used, the registered versions, and where everything lies."""
    videos = video_status(project)
    failed = videos.filter(pl.col("status") != STATUS_OK)
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(Counter(failed["reason"]).items()))
    name = project.config.tracking.registered_model
    champion = champion_of(tracker_of(project).client, name)
    return [
        f"videos: {len(videos)}, ok {len(videos) - len(failed)}, failed {len(failed)}" + (reasons and f" ({reasons})"),
        *(f"  {row['video_id']}: {row['reason']}: {row['message']}" for row in failed.head(20).iter_rows(named=True)),
        *(_about_training(project) if project.root.exists(CURRENT_NAME) else [NOT_TRAINED]),
        f"champion: models:/{name}@{CHAMPION} is version {champion.version}"
        if champion
        else f"champion: none; `hapvr models promote VERSION` makes one of {name}",
        f"data: {project.root.url}; MLflow: {project.tracking_uri}; `make ui` shows both and the Dagster graph",
    ]


def _about_training(project: Project) -> list[str]:
    """Lines on the current model: frozen networks, versions of it, and where it lies."""
    run, name = current_run(project), project.config.tracking.registered_model
    weights = read_record(run.folder)["weights"]
    warning = random_weights_warning(one["source"] for one in weights.values())
    versions = tracker_of(project).client.search_model_versions(f"name = '{name}' and run_id = '{run.mlflow_run_id}'")
    return [
        *(f"{DOES[part]} {one['architecture']}, {one['source']} weights" for part, one in weights.items()),
        *([f"warning: {warning}"] if warning else []),
        *(f"registered: {name} version {version.version}: {decision_of(version.tags)}" for version in versions),
        f"model: {run.folder}; MLflow run {run.mlflow_run_id}",
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
