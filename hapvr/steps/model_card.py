"""The card of a trained model, in Markdown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from hapvr.data.manifest import read_manifest
from hapvr.data.shards import STATUS_OK
from hapvr.files import digest_of
from hapvr.networks.encoder import weights_origin
from hapvr.registry.versions import LINEAGE_FILE
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.evidence import EvidenceModel
from hapvr.steps.baseline_card import searches_text
from hapvr.steps.evaluation import BASELINE, TRAINED
from hapvr.steps.project import Project
from hapvr.steps.quality import video_status
from hapvr.steps.training import TrainingRun
from hapvr.tables import markdown_table
from hapvr.train.run_folder import read_record


@dataclass(frozen=True)
class CardFacts:
    """Facts on a model card that the training did not record."""

    scores: Mapping[str, Mapping[str, Any]]
    """benchmark -> what scores.json says"""
    calibration: Calibration | str
    """of similarities of pairs, or why there is none"""
    evidence: EvidenceModel | str
    """of searches, or why there is none"""
    tags: Mapping[str, str]
    """of the registration"""
    onnx: Mapping[str, Any]
    """see `write_bundle`"""
    warning: str
    """the first line, empty for none"""


def model_card(project: Project, run: TrainingRun, facts: CardFacts) -> str:
    """The card of the run's model, in Markdown."""
    record = read_record(run.folder)
    name = project.config.tracking.registered_model
    paragraphs = [
        f"# Model card: {name}, training run {run.key}",
        "Similarity of two videos in [-1, 1] from their pictures alone: copies, edits and, where "
        f"the labels below cover it, other footage of the same scene or incident. "
        f"{_taught(project)}",
        *_data(project, record),
        *_weights(record["weights"]),
        *_metrics(project, facts.scores),
        "## Calibration",
        *_calibration(facts.calibration),
        f"## Searches\n\n{searches_text(facts.evidence)}",
        _limits(project, facts),
        f"## Use\n\n`hapvr score a.mp4 b.mp4 --model models:/{name}@champion --segments`, or "
        "as docs/serving.md says. HAPVR_ALLOWED_ROOTS names the folders that a server may read "
        "(unset: all), HAPVR_ALLOWED_HOSTS the hosts it may fetch from (unset: none).",
        _origin(run, record, facts.tags),
    ]
    if facts.warning:
        paragraphs.insert(0, f"**Warning: {facts.warning}.**")
    return "\n\n".join(paragraphs).rstrip() + "\n"


def _taught(project: Project) -> str:
    """A sentence: what the network learned from."""
    if project.config.train.reads_pairs:
        return "Trained on labelled pairs of videos that share footage."
    return "Trained without labels (HAP-VR, Liu et al., ACM MM 2024)."


def _data(project: Project, record: Mapping[str, Any]) -> list[str]:
    """How many videos there are of each source, and what the training read."""
    manifest = read_manifest(project.root).select("video_id", "source", "split")
    usable = (pl.col("status") == STATUS_OK).sum().alias("usable")
    videos = video_status(project).join(manifest, on="video_id", how="left")
    counts = videos.group_by("source", "split").agg(pl.len().alias("videos"), usable).sort("source")
    return [
        f"## Data\n\n{markdown_table(counts.columns, counts.rows())}",
        f"Trained on {len(record['shards'])} shards of the training split, whose digests are in "
        f"{LINEAGE_FILE} of the MLflow run; all together have {digest_of(record['data_digests'])}.",
    ]


def _weights(networks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A table of the networks, and where packaged ones come from."""
    columns = ("network", "architecture", "weights", "precision", "SHA-256")
    rows = []
    origins = set()
    for part, identity in networks.items():
        architecture = identity["architecture"]
        precision = identity.get("precision", "float32")
        rows.append((part, architecture, identity["source"], precision, identity["sha256"][:12]))
        origins.add(weights_origin(architecture, identity["source"]))

    origins.discard("")
    return ["## Weights", markdown_table(columns, rows), *sorted(origins)]


def _metrics(project: Project, scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A table of the metrics of each benchmark and task."""
    columns = ("benchmark", "task", "metric", BASELINE, "this model", "queries / relevant pairs")
    rows = []
    for benchmark, data in scores.items():
        results = data["results"]
        for task, details in results[TRAINED]["tasks"].items():
            untrained = _percent(results[BASELINE], task)
            trained = _percent(results[TRAINED], task)
            counts = f"{details['num_queries']} / {details['num_relevant']}"
            rows.append((benchmark, task, details["metric"], untrained, trained, counts))

    return [
        "## Metrics\n\nIn percent, with 95 % bootstrap intervals over queries; policy "
        f"{project.config.evaluation.policy}.",
        markdown_table(columns, rows),
    ]


def _percent(result: Mapping[str, Any], task: str) -> str:
    percent = f"{100 * result['metrics'][task]:.2f}"
    interval = result["intervals"].get(task)
    if not interval:
        return percent
    low, high = interval
    return f"{percent} [{100 * low:.2f}, {100 * high:.2f}]"


def _calibration(fitted: Calibration | str) -> list[str]:
    """Paragraphs and a table, or why there is no calibration."""
    if isinstance(fitted, str):
        return [f"None: {fitted}. The column `probability` is empty."]
    columns = ("wanted precision", "similarity from", "precision", "recall", "matches / pairs")
    rows = []
    for threshold in fitted.thresholds:
        similarity = "not reached"
        if threshold.similarity is not None:
            similarity = f"{threshold.similarity:.4f}"
        row = (
            f"{threshold.precision:g}",
            similarity,
            f"{threshold.found:.3f}",
            f"{threshold.recall:.3f}",
            f"{threshold.num_matches} / {threshold.num_pairs}",
        )
        rows.append(row)

    labels = ", ".join(fitted.source["labels"])
    return [
        f"Fitted on the pairs of {fitted.source['benchmark']}: {fitted.num_matches} matches "
        f"(labels {labels}) and {fitted.num_others} others. P(match) = 1 / (1 + "
        f"exp(-({fitted.slope:.4g} x similarity {fitted.intercept:+.4g}))); Brier score "
        f"{fitted.brier:.4f} on these same pairs.",
        f"Probabilities and thresholds hold where {100 * fitted.prior:.1f} % of the pairs that are "
        "asked about match, as there. Where matches are rarer both are too optimistic; `--prior` "
        "corrects for it.",
        markdown_table(columns, rows),
    ]


def _limits(project: Project, facts: CardFacts) -> str:
    is_cropped = project.config.backbone.picture == "cropped"
    picture = "Pictures are centre-cropped." if is_cropped else "Pictures are squeezed to a square."
    reason = facts.onnx.get("reason")
    without_torch = f"The model needs torch, since it has no ONNX files: {reason}."
    if "files" in facts.onnx:
        difference = f"{facts.onnx['check']['largest_difference']:.1g}"
        without_torch = (
            "Similarities without torch, by ONNX files, differed from torch's by "
            f"{difference} at most."
        )

    return "\n".join(
        [
            "## Limits",
            "",
            f"- Measured on {', '.join(facts.scores) or 'no benchmark'} only; nothing is known of "
            "other kinds of video. Generated videos are less varied than real ones, and benchmarks "
            "of one's own videos hold edits made by this package alone.",
            f"- Sound is not used. {picture}",
            "- Segments run forward in both videos and are exact to one sampled frame.",
            f"- {without_torch}",
        ]
    )


def _origin(run: TrainingRun, record: Mapping[str, Any], tags: Mapping[str, str]) -> str:
    libraries = ", ".join(
        f"{library} {number}" for library, number in record["environment"].items()
    )
    values = "; ".join(f"{tag}: {value}" for tag, value in sorted(tags.items()))
    return (
        f"## Origin\n\nMLflow run {run.mlflow_run_id}, which has all settings; trained with "
        f"{libraries}. {values}"
    )
